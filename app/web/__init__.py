"""A web page to upload videos, scan with a phone, watch runs, look at results and take them away."""
