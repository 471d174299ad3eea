# Each kernel file is compiled once for each tier, in a namespace of its own; the tier is chosen at run time.
# A tier that the compiler's target lacks is left out, and its table is null (no_x86.cpp).
set(GRISTMILL_KERNEL_SOURCES linear_q4.cpp linear_q8.cpp linear_float.cpp rows.cpp embed.cpp rope.cpp attention.cpp sample.cpp table.cpp)

# Quantization, rotation and sampling round the same in every tier: no multiply-add may be fused there.
set_source_files_properties(native/kernels/rows.cpp native/kernels/sample.cpp native/kernels/rope.cpp native/kernels/attention.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off)

add_library(gristmill_kernels INTERFACE)

function(add_kernel_tier name)
  set(sources "")
  foreach(source IN LISTS GRISTMILL_KERNEL_SOURCES)
    list(APPEND sources "${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/${source}")
  endforeach()
  add_library("gristmill_kernels_${name}" OBJECT ${sources})
  target_compile_definitions("gristmill_kernels_${name}" PRIVATE GM_TIER=${name} GM_TIER_NAME="${name}" GM_TABLE=kernels_${name} GM_${name}=1)
  target_compile_options("gristmill_kernels_${name}" PRIVATE -Wall -Wextra -Wno-missing-field-initializers -Wno-psabi -Wno-maybe-uninitialized ${ARGN})
  target_sources(gristmill_kernels INTERFACE "$<TARGET_OBJECTS:gristmill_kernels_${name}>")
endfunction()

add_kernel_tier(portable -ffp-contract=off)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_kernel_tier(avx2 -mavx2 -mfma -mf16c)
  add_kernel_tier(avx512 -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512vnni -mprefer-vector-width=512)
else()
  target_sources(gristmill_kernels INTERFACE "${CMAKE_CURRENT_SOURCE_DIR}/native/kernels/no_x86.cpp")
endif()
