// The sub-commands. Each `add_*` registers options and a callback on its parent; the callback runs
// while the command line is parsed and leaves its result in `outcome`, which main prints.
#ifndef LONGDECODE_TOOLS_COMMANDS_H_
#define LONGDECODE_TOOLS_COMMANDS_H_

#include <CLI/CLI.hpp>

#include "longdecode/status.h"

namespace longdecode::tool {

void add_generate(CLI::App& app, Status& outcome);
void add_tokenize(CLI::App& app, Status& outcome);
void add_perplexity(CLI::App& app, Status& outcome);
void add_dump_qkv(CLI::App& app, Status& outcome);
void add_study_format(CLI::App& app, Status& outcome);
void add_bench_attention(CLI::App& bench, Status& outcome);
void add_bench_model(CLI::App& bench, Status& outcome);
void add_info(CLI::App& app, Status& outcome);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_COMMANDS_H_
