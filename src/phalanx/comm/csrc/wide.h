/* Attributes with which loops over elements are compiled. */
#ifndef PHALANX_WIDE_H
#define PHALANX_WIDE_H

/* Compile a loop for several widths of vectors; the loader chooses the processor's. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define WIDE
#endif
/* Equal addresses are allowed, so `restrict` would lie; no iteration reads another's result. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#endif
