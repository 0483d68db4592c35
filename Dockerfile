# The web page, without a GPU; about 1.6 GB and as many minutes as `pip install`: docker build -t stream-recon .
#   docker run --rm -p 8080:8080 -v results:/data stream-recon
# Any other command follows the name:
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" stream-recon video.mp4 --no-viewer
FROM python:3.12-slim AS build
RUN python -m venv /opt/stream-recon
ENV PATH=/opt/stream-recon/bin:$PATH
WORKDIR /src
# Dependencies first: they stay in the cache where only the code changes.
COPY pyproject.toml constraints-cpu.txt ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*p['dependencies'], *p['optional-dependencies']['serve'], sep='\n')" > requirements.txt \
    && pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    --constraint constraints-cpu.txt --requirement requirements.txt
COPY LICENSE README.md setup.py ./
COPY .package .package
COPY configs configs
COPY cache cache
COPY models models
COPY app app
RUN pip install --no-cache-dir --no-deps .

FROM python:3.12-slim
COPY --from=build /opt/stream-recon /opt/stream-recon
# Any user may run it: caches and thread files go to a folder that each one can write.
ENV PATH=/opt/stream-recon/bin:$PATH HOME=/tmp
RUN useradd --no-create-home recon && install --directory --owner recon /data
USER recon
WORKDIR /data
VOLUME /data
EXPOSE 8080
HEALTHCHECK CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz')"]
ENTRYPOINT ["stream-recon"]
CMD ["serve", "--data", "/data", "--host", "0.0.0.0", "--port", "8080"]
