// The session of a command, on the device that --device asks for.
#ifndef LONGDECODE_TOOLS_OPEN_SESSION_H_
#define LONGDECODE_TOOLS_OPEN_SESSION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "longdecode/status.h"
#include "longdecode/types.h"
#include "runner/model/session.h"
#include "session_options.h"

namespace longdecode::tool {

// Of sequences that are decoded together.
struct BatchRoom {
  int32_t parallel = 1;          // CUDA: at most so many at once
  std::vector<int64_t> lengths;  // tokens of all sequences; empty: one of context_len
};

// --device auto: the GPU. Where there is none, or it has no kernels or no room for this model, the
// CPU, and one note says why (not in a build without the CUDA backend: it never had the choice). On
// the CPU a note names the given flags that have no effect there.
Result<runner::Session> open_session(std::shared_ptr<const runner::Model> model,
                                     const SessionFlags& flags, Method method, int64_t context_len,
                                     bool progress, const BatchRoom& room = {});

// The note that --device auto falls back to the CPU.
void note_cpu(const Status& why);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_OPEN_SESSION_H_
