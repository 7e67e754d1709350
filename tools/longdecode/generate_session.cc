#include "generate_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/dtype_name.h"
#include "base/errors.h"
#include "output.h"

namespace longdecode::tool {

Result<PromptRoom> fit_context(const GenerateOptions& options, const std::string& name,
                               int64_t prompt_tokens, int64_t model_context) {
  if (options.context_len > model_context) {
    return invalid_argument("-c is {}; the context of the model is {} tokens", options.context_len,
                            model_context);
  }
  const int64_t limit = options.context_len > 0 ? options.context_len : model_context;
  const char* limit_name = options.context_len > 0 ? "-c" : "the context of the model";
  if (prompt_tokens > limit) {
    return invalid_argument("{} has {} tokens; {} is {}", name, prompt_tokens, limit_name, limit);
  }
  if (prompt_tokens == limit && options.num_predict > 0) {
    return invalid_argument("{} has {} tokens, which leaves no room for more; {} is {}", name,
                            prompt_tokens, limit_name, limit);
  }
  PromptRoom room;
  room.num_predict = std::min(options.num_predict, limit - prompt_tokens);
  room.context_len =
      options.context_len > 0 ? options.context_len : prompt_tokens + room.num_predict;
  return room;
}

Result<runner::Session> open_generate_session(const GenerateOptions& options,
                                              std::shared_ptr<const runner::Model> model,
                                              int64_t context_len, const BatchRoom& room) {
  const std::string method = decode_method(options, context_len);
  if (method != options.method) {
    print_note(fmt::format("dense, not {}: {} tokens are fewer than --ffd-min-len {}",
                           options.method, context_len, options.ffd_min_len));
  }
  return open_session(std::move(model), options.session, parse_method(method), context_len,
                      options.progress, room);
}

void fill_result(const GenerateOptions& options, const runner::Session& session,
                 GenerateResult& result) {
  result.model_path = options.prompt.model_path;
  result.method = options.method;
  result.decode_method = decode_method(options, session.options().context_len);
  result.ffd_min_len = options.ffd_min_len;
  result.device = device_name(session.options().device.type);
  result.kernel = session.kernel_name();
  result.kv_type = dtype_name(session.options().kv_dtype);
  result.session = options.session;
  result.sampler = options.sampler;
  result.num_threads = session.options().device.num_threads;
  result.context_len = session.options().context_len;
  result.stats = session.stats();
  result.peak_rss_bytes = peak_rss_bytes();
}

}  // namespace longdecode::tool
