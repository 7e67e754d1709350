// What this machine's CPU offers.
#ifndef LONGDECODE_CPU_CPU_FEATURES_H_
#define LONGDECODE_CPU_CPU_FEATURES_H_

#include "longdecode/types.h"

namespace longdecode::cpu {

// Instruction sets count only where the operating system saves their registers; AMX only where it
// also grants its tile data to this process.
DeviceInfo detect_cpu();

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_CPU_FEATURES_H_
