#!/usr/bin/env bash
# A bridge between a chat and zot: bridge.sh SESSION MESSAGE [flags of zot host]. Prints the answer. Needs jq.
set -u
session=$1 message=$2
shift 2
key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n') # better: the id of the message in its chat

# Start zot for one request and print its answer. zot ends by itself, in time.
ask() {
  jq -cn --arg session "$session" --arg message "$message" --arg key "$key" --arg id "$RANDOM$RANDOM" \
    --argjson seconds "${BRIDGE_TIMEOUT_S:-30}" \
    '{request_id: $id, session_id: $session, prompt: $message, idempotency_key: $key, timeout_ms: ($seconds * 900)}' |
    "${ZOT:-zot}" host --protocol v1 --bridge-compat --single-request "$@"
}

answer=$(ask "$@") # one object, whatever the exit code is
case $(jq -r .error_code <<<"$answer") in # after a pause also PROVIDER_RATE_LIMIT
  TIMEOUT | PROVIDER_DOWN) answer=$(ask "$@") ;; # the same key: zot continues where it stopped
esac
if [ "$(jq -r .ok <<<"$answer")" = true ]; then
  jq -r .text <<<"$answer"
else
  jq -r '.error_code + ": " + .error_message' <<<"$answer" >&2
  echo "Sorry, I cannot answer right now."
  exit 1
fi
