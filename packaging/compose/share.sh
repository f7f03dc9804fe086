#!/bin/sh
# Publishes the mesh `team` of ana at the broker, and lets ben join it.
set -eu
cd "$(dirname "$0")"
compose="${COMPOSE:-docker compose}"
card=$($compose exec -T broker holdfast broker status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["card"])')
invite=$($compose exec -T ana holdfast mesh publish team --broker https://broker:7421 --card "$card" | tail -n 1)
$compose exec -T ben holdfast mesh join "$invite"
$compose exec -T ana holdfast state set greeting "hello from ana" --mesh team
$compose exec -T ben holdfast mesh sync team
$compose exec -T ben holdfast state get greeting --mesh team
