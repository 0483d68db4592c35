# Sourced by scripts/demo and scripts/test: creates .venv with the package and the test dependencies, and activates it.
# Does nothing if the dependencies have not changed.
venv=.venv
stamp="$venv/.stream-recon-setup"
wanted="$(cat pyproject.toml constraints*.txt | cksum) $(pwd)"
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    echo "setting up $venv (a few minutes the first time) ..." >&2
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    constraints=(--constraint constraints.txt)
    extras="dev"
    if command -v nvidia-smi > /dev/null 2>&1; then
        extras="dev,cuda"
    else
        # Without an NVIDIA GPU: the CPU build of torch, which is a tenth of the size.
        constraints+=(--constraint constraints-cpu.txt)
    fi
    "$venv/bin/python" -m pip install --quiet --upgrade "pip>=24"
    "$venv/bin/python" -m pip install --quiet "${constraints[@]}" --editable ".[$extras]"
    echo "$wanted" > "$stamp"
fi
. "$venv/bin/activate"
