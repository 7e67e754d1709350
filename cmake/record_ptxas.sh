#!/bin/sh
# Compiler launcher: runs the command and keeps ptxas' report in OBJECT.ptxas.
object=
previous=
for argument in "$@"; do
  [ "$previous" = "-o" ] && object=$argument
  previous=$argument
done
[ -n "$object" ] || exec "$@"
"$@" 2> "$object.ptxas"
status=$?
grep -v -e '^ptxas info' -e '^ *[0-9]* bytes stack frame' -e '^ *$' "$object.ptxas" >&2
exit $status
