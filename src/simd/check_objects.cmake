# Kernel files are compiled once per instruction set. A weak symbol in one of their objects (an inline function or a
# template that was not inlined) could be kept by the linker for every target, and then an old machine would run
# instructions it does not have. So there must be none.
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} -C ${object} OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "nm could not read ${object}")
  endif()
  string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" weak "${symbols}")
  if(weak)
    message(FATAL_ERROR "${object} defines shared symbols:\n${weak}")
  endif()
endforeach()
