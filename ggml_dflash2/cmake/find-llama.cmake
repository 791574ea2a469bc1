# Defines the imported targets dflash2_ggml (ggml) and dflash2_llama (libllama) and the variable DFLASH2_RPATH.
#
# The llama_cpp package installs two copies of the libraries, in lib/ and in llama_cpp/lib. Only the second one is what
# `import llama_cpp` loads, so it is the one to link to: one process, one libllama.

if(APPLE)
    set(_origin "@loader_path")
else()
    set(_origin "$ORIGIN")
endif()

if(DFLASH2_LLAMA_ROOT)
    set(_include "${DFLASH2_LLAMA_ROOT}/include")
    set(_lib "${DFLASH2_LLAMA_ROOT}/lib")
    set(DFLASH2_RPATH "${_lib}")
else()
    execute_process(
        COMMAND "${Python_EXECUTABLE}" -c
                "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('llama_cpp').origin).parent)"
        OUTPUT_VARIABLE _llama_cpp OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _failed)
    if(_failed)
        message(FATAL_ERROR "llama-cpp-python is not installed for ${Python_EXECUTABLE}; "
                            "run: pip install llama-cpp-python==0.3.36, or pass -DDFLASH2_LLAMA_ROOT=DIR")
    endif()
    get_filename_component(_site "${_llama_cpp}" DIRECTORY)
    set(_include "${_site}/include")
    set(_lib "${_llama_cpp}/lib")
    set(DFLASH2_RPATH "${_origin}/../llama_cpp/lib")
endif()

foreach(header llama.h ggml.h gguf.h)
    if(NOT EXISTS "${_include}/${header}")
        message(FATAL_ERROR "${_include}/${header} not found: expected the headers of llama.cpp there")
    endif()
endforeach()

function(dflash2_import name)
    add_library(${name} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${name} SYSTEM INTERFACE "${_include}")
    foreach(lib ${ARGN})
        find_library(DFLASH2_LIB_${lib} ${lib} PATHS "${_lib}" NO_DEFAULT_PATH REQUIRED)
        target_link_libraries(${name} INTERFACE "${DFLASH2_LIB_${lib}}")
    endforeach()
    if(NOT APPLE)
        target_link_options(${name} INTERFACE "LINKER:-rpath-link,${_lib}")
    endif()
endfunction()

dflash2_import(dflash2_ggml ggml ggml-base)
dflash2_import(dflash2_llama llama)
set(DFLASH2_LIB_DIR "${_lib}")
