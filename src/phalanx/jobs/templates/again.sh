# @lost_code: ranks or a node were lost after a checkpoint
if [ $code -eq @lost_code ]; then
  @count
  [ $lost -le @max_losses ] && code=@stopped_code
fi
# @stopped_code: stopped with a checkpoint; @killed_code: before it had begun
if [ $code -eq @stopped_code ] || [ $code -eq @killed_code ]; then
  [ -n "$ended" ] && exit $code  # SIGTERM: whoever ended the job decides
  @again && exit 0
fi
exit $code
