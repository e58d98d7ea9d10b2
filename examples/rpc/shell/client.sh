#!/usr/bin/env bash
# Print the answer of `zot rpc` to one prompt. Needs bash and jq.
#
#     ./client.sh "say hello" --provider lab
#
# Further arguments are passed on to `zot rpc`. $ZOT is the program (default: zot).
#
# Without error handling it is one line:
#
#     echo '{"type":"prompt","message":"hello"}' | zot rpc --provider lab |
#       jq --unbuffered -rj 'select(.type == "text_delta").delta'
set -uo pipefail

if [ $# -lt 1 ]; then
  echo 'usage: client.sh "PROMPT" [flags of zot rpc]' >&2
  exit 2
fi
message=$1
shift

# jq writes the command, so that whatever is in the message becomes one correct line of JSON.
ask() {
  jq -cn --arg message "$message" '{id: "prompt", type: "prompt", message: $message}'
}

# The text, as it comes; at the end any error, as an exit code and on stderr.
show() {
  jq --unbuffered -nrj '
    foreach (inputs, {type: "end"}) as $frame ({};
      if $frame.type == "response" and ($frame.success | not) then .problem = "\($frame.command): \($frame.error)"
      elif $frame.type == "error" then .problem = $frame.message
      elif $frame.type == "turn_end" then .aborted = ($frame.stop == "aborted")
      elif $frame.type == "done" then .done = true
      else . end;

      if $frame.type == "text_delta" then $frame.delta
      elif $frame.type == "assistant_message" then "\n"
      elif $frame.type != "end" then empty
      elif .problem then "client.sh: \(.problem)\n" | halt_error(1)
      elif .done | not then "client.sh: zot ended before it was done\n" | halt_error(1)
      elif .aborted then "" | halt_error(130)
      else empty end
    )'
}

# zot's input ends after the prompt. zot runs the prompt to its end, then exits.
#
# Ctrl+C reaches every program of the pipeline. zot aborts the prompt and reports it; `show` ignores the signal, to read that.
ask | "${ZOT:-zot}" rpc "$@" | (trap '' INT && show)
