# Runs as the machine's ordinary user, in a login shell.
export PATH=/opt/hutch/bin:$PATH PYTHONPATH=/opt/hutch/guest PYTHONDONTWRITEBYTECODE=1
cd /opt/hutch
xargs -r -d '\n' -a /opt/hutch/guest/checks \
  python3 -m pytest -vv --color=no -p no:cacheprovider --rootdir /opt/hutch --import-mode=importlib \
  -o pythonpath=/opt/hutch/tests -p report -p patience -p index 2>&1
