// `longdecode generate` with several prompts.
#ifndef LONGDECODE_TOOLS_GENERATE_BATCH_H_
#define LONGDECODE_TOOLS_GENERATE_BATCH_H_

#include "generate_options.h"
#include "longdecode/status.h"

namespace longdecode::tool {

// Options are checked, two prompts or more. Prints the texts in the order of the prompts, each as
// far as it is there.
Status run_generate_batch(const GenerateOptions& options);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_GENERATE_BATCH_H_
