trap 'kill -USR1 $command 2>/dev/null' USR1
trap '@on_term' TERM
@command &
command=$!
wait $command; code=$?  # a signal ends the wait
while kill -0 $command 2>/dev/null; do wait $command; code=$?; done
