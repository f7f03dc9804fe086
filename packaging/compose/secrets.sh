#!/bin/sh
# Makes the passwords of compose.yaml, once: those that are there stay. The folder is closed to others; the files can be
# read in the containers by users that are not root.
set -eu
cd "$(dirname "$0")"
mkdir -p -m 700 secrets
password() { head -c 24 /dev/urandom | base64 | tr '+/' '-_'; }
test -s secrets/db_password || password > secrets/db_password
test -s secrets/grafana_password || password > secrets/grafana_password
echo "postgresql://holdfast:$(cat secrets/db_password)@db/holdfast" > secrets/broker_dsn
chmod 644 secrets/*
echo "made $(pwd)/secrets; the password of Grafana's user admin is in grafana_password"
