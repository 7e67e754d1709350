// Merging partial results by their lse (MergeArgs).
#ifndef LONGDECODE_CPU_MERGE_H_
#define LONGDECODE_CPU_MERGE_H_

#include "longdecode/attention.h"

namespace longdecode::cpu {

void merge(const MergeArgs& args, const DeviceInfo& device);

}  // namespace longdecode::cpu

#endif  // LONGDECODE_CPU_MERGE_H_
