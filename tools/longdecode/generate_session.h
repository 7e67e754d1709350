// What one prompt and several have in common: the context they get, the session, its facts.
#ifndef LONGDECODE_TOOLS_GENERATE_SESSION_H_
#define LONGDECODE_TOOLS_GENERATE_SESSION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "generate_options.h"
#include "generate_report.h"
#include "longdecode/status.h"
#include "open_session.h"
#include "runner/model/session.h"

namespace longdecode::tool {

// The tokens that may follow a prompt, -n or what the context has room for, and the tokens of
// context that both need, or -c.
struct PromptRoom {
  int64_t num_predict = 0;
  int64_t context_len = 0;
};

// `name` is the prompt's in errors.
Result<PromptRoom> fit_context(const GenerateOptions& options, const std::string& name,
                               int64_t prompt_tokens, int64_t model_context);

// With context_len tokens of room; a note where that is too short for --method ffd.
Result<runner::Session> open_generate_session(const GenerateOptions& options,
                                              std::shared_ptr<const runner::Model> model,
                                              int64_t context_len, const BatchRoom& room = {});

// The members that describe the run, not its texts and times.
void fill_result(const GenerateOptions& options, const runner::Session& session,
                 GenerateResult& result);

}  // namespace longdecode::tool

#endif  // LONGDECODE_TOOLS_GENERATE_SESSION_H_
