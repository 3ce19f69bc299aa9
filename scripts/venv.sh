# Sourced by the other scripts: makes .venv with kproc and its test tools once, and again when pyproject changes.
# Sets $python. PYTHON chooses the interpreter that the environment is made with.
cd "$(dirname "$0")/.."
venv=${KPROC_VENV:-.venv}
python=$venv/bin/python
if ! cmp -s pyproject.toml "$venv/.installed-pyproject"; then
    "${PYTHON:-python3}" -c 'import sys; sys.exit("kproc needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
    echo "+ making $venv with kproc and its development tools"
    [ -x "$python" ] || "${PYTHON:-python3}" -m venv "$venv"
    "$python" -m pip install --quiet --disable-pip-version-check -e '.[dev]'
    cp pyproject.toml "$venv/.installed-pyproject"
fi
