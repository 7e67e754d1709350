// Loads of 8x8 matrices of 16-bit elements from shared memory: lane 8 i + r holds the address of
// row r (16 bytes) of matrix i; lane 4 g + t gets elements 2 t, 2 t + 1 of row g (of column g:
// transposed) of each matrix.
#ifndef LONGDECODE_CUDA_PTX_LDMATRIX_CUH_
#define LONGDECODE_CUDA_PTX_LDMATRIX_CUH_

#include <cstdint>

namespace longdecode::cuda::ptx {

__device__ __forceinline__ void load_matrix_x4(uint32_t (&fragment)[4], uint32_t s_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(s_row)
               : "memory");
}

__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&fragment)[4], uint32_t s_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(s_row)
               : "memory");
}

}  // namespace longdecode::cuda::ptx

#endif  // LONGDECODE_CUDA_PTX_LDMATRIX_CUH_
