// Integer dot products that Highway 1.0.3 lacks, compiled for their instruction sets by target
// attributes. On other CPUs cpu_has_* are false and the kernels do nothing.
#ifndef LONGDECODE_CPU_FFD_SCAN_X86_H_
#define LONGDECODE_CPU_FFD_SCAN_X86_H_

#include "cpu/ffd_scan.h"

namespace longdecode::cpu {

bool cpu_has_avx512_vnni();
bool cpu_has_gfni();
bool cpu_has_avx2();

// With AVX512-VNNI and GFNI.
void scan_tiles_avx512_gfni(const uint8_t* codes, int32_t num_blocks, int32_t tile_begin,
                            int32_t tile_end, const FoldedRows& rows, int32_t num_rows,
                            uint16_t* hits);
void scan_tiles_avx512_vnni(const uint8_t* codes, int32_t num_blocks, int32_t tile_begin,
                            int32_t tile_end, const FoldedRows& rows, int32_t num_rows,
                            uint16_t* hits);
void scan_tiles_avx2(const uint8_t* codes, int32_t num_blocks, int32_t tile_begin, int32_t tile_end,
                     const FoldedRows& rows, int32_t num_rows, uint16_t* hits);

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_FFD_SCAN_X86_H_
