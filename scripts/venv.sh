# Sourced by the other scripts: makes .venv with kproc and its test tools once, and again when pyproject changes.
# Sets $python. PYTHON chooses the interpreter that the environment is made with; $extras what goes in: the types
# of Spark's side are checked everywhere, only its tests need Java.
cd "$(dirname "$0")/.."
venv=${KPROC_VENV:-.venv}
python=$venv/bin/python
extras=${extras:-dev,spark,bench}
spark_requirements='import sys, tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(*(line for line in extras["spark"] if line.startswith("pyspark") == (sys.argv[1] == "pyspark")))'
if ! cmp -s pyproject.toml "$venv/.installed-$extras" && ! cmp -s pyproject.toml "$venv/.installed-dev,spark,bench"; then
    "${PYTHON:-python3}" -c 'import sys; sys.exit("kproc needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
    echo "+ making $venv with kproc and its development tools"
    # The pip that comes with Python 3.11 needs a minute of CPU to find the packages, the newest one less than half.
    [ -x "$python" ] || {
        "${PYTHON:-python3}" -m venv --without-pip "$venv" &&
            "${PYTHON:-python3}" -m pip --python "$python" install --quiet --disable-pip-version-check pip
    } 2>/dev/null || "${PYTHON:-python3}" -m venv "$venv"
    # PySpark is larger than all others together: one pip unpacks it while another one finds the others.
    pyspark= spark= others=$extras
    case ,$extras, in *,spark,*)
        pyspark=$("$python" -c "$spark_requirements" pyspark)
        spark=$("$python" -c "$spark_requirements" others)
        others=$(echo ",$extras," | sed 's/,spark,/,/; s/^,//; s/,$//')
        "$python" -m pip install --quiet --disable-pip-version-check "$pyspark" &
        unpacking=$!
    esac
    # shellcheck disable=SC2086
    "$python" -m pip install --quiet --disable-pip-version-check $spark -e ".[$others]"
    [ -z "$pyspark" ] || wait "$unpacking"
    cp pyproject.toml "$venv/.installed-$extras"
fi
