#!/bin/sh
# How much room there is on the disk of a path: a tool in shell. It needs jq, which writes one frame per line.

emit() { jq -cn "$@"; }

emit '{type: "hello", name: "disk", version: "1.0.0", capabilities: ["tools"]}'
emit '{type: "register_tool", name: "disk_free", description: "How much room is left on the disk of a path.",
       schema: {type: "object", properties: {path: {type: "string"}}, required: ["path"]}}'
emit '{type: "ready"}'

while IFS= read -r line; do
    field() { printf '%s\n' "$line" | jq -r "$1"; }
    case $(field .type) in
    tool_call)
        if text=$(df -hP -- "$(field '.args.path // "."')" 2>&1); then failed=false; else failed=true; fi
        emit --arg id "$(field .id)" --arg text "$text" --argjson failed "$failed" \
            '{type: "tool_result", id: $id, content: [{type: "text", text: $text}], is_error: $failed}'
        ;;
    shutdown)
        emit '{type: "shutdown_ack"}'
        exit 0
        ;;
    esac
done
