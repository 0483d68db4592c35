# Without a GPU, about 1.6 GB and as many minutes as `pip install`: docker build -t stream-recon .
#   docker run --rm -p 8080:8080 --user "$(id -u):$(id -g)" -v "$PWD:/data" stream-recon video.mp4 --host 0.0.0.0
FROM python:3.12-slim
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    --constraint constraints-cpu.txt . && rm -rf /src/*
# Any user may run it: caches and thread files go to a folder that each one can write.
ENV HOME=/tmp
WORKDIR /data
EXPOSE 8080
ENTRYPOINT ["stream-recon"]
CMD ["--help"]
