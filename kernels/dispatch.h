// One source, three instruction sets: the dynamic linker picks the widest one that the CPU has,
// once, when the program starts.
//
// The loops are plain C++ that g++ vectorises (512, 256 or 128 bits). Without contraction and reassociation a lane
// computes what the scalar loop would, so all three give the same bits. Two rules for a function that carries
// TRIBUTARY_MULTIVERSION: it is a plain function (no template, no member), and the functions that it calls inside the
// loop are TRIBUTARY_INLINE, so that they are compiled for the same instruction set.
#pragma once

// Empty under sanitizers: the resolvers run before the sanitizers' own start-up.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(TRIBUTARY_SANITIZED) && !defined(__CUDACC__)
#define TRIBUTARY_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TRIBUTARY_MULTIVERSION
#endif

// A formula that TRIBUTARY_INLINE marks is compiled for the device as well where nvcc includes it: one formula, both
// twins. It may call constexpr functions and std::sqrt, std::fabs and the like.
#if defined(__CUDACC__)
#define TRIBUTARY_INLINE __host__ __device__ __forceinline__
#else
#define TRIBUTARY_INLINE __attribute__((always_inline)) inline
#endif

// Before a loop whose iterations touch only element i of each array: outputs may be the inputs (in-place), never
// shifted against them. The compiler then vectorises without run-time overlap checks, which in-place calls would fail.
#define TRIBUTARY_ELEMENTWISE _Pragma("GCC ivdep")
