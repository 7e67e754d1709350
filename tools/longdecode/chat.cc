#include "chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "generator.h"
#include "model_file.h"
#include "open_session.h"
#include "output.h"
#include "progress.h"
#include "prompt.h"
#include "runner/tokenizer/chat_template.h"
#include "runner/tokenizer/from_gguf.h"
#include "runner/tokenizer/utf8.h"

namespace longdecode::tool {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void on_interrupt(int) { g_interrupted = 1; }

// While it lives the first Ctrl-C sets the flag, and interrupts a read; a second one ends the
// process as always. arm() makes the next Ctrl-C a first one.
class InterruptGuard {
 public:
  InterruptGuard() {
    sigaction(SIGINT, nullptr, &before_);
    arm();
  }
  ~InterruptGuard() { sigaction(SIGINT, &before_, nullptr); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  void arm() {
    g_interrupted = 0;
    struct sigaction action = {};
    action.sa_handler = on_interrupt;
    action.sa_flags = static_cast<int>(SA_RESETHAND);  // no SA_RESTART: getline returns
    sigaction(SIGINT, &action, nullptr);
  }

 private:
  struct sigaction before_ = {};
};

// The next line of stdin without its end; nothing at the end of the input or after Ctrl-C.
Result<std::optional<std::string>> read_line() {
  if (isatty(STDIN_FILENO) != 0) fmt::print(stderr, "> ");
  char* buffer = nullptr;
  size_t capacity = 0;
  errno = 0;
  const ssize_t length = getline(&buffer, &capacity, stdin);
  const int error = errno;
  const std::unique_ptr<char, decltype(&std::free)> owner(buffer, &std::free);
  if (length < 0) {
    if (std::feof(stdin) == 0 && error != EINTR) {
      return invalid_argument("stdin cannot be read: {}", std::strerror(error));
    }
    return std::optional<std::string>();
  }
  std::string line(buffer, static_cast<size_t>(length));
  drop_byte_order_mark(line);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  return std::optional(std::move(line));
}

class Chat {
 public:
  Chat(const GenerateOptions& options, const runner::Tokenizer& tokenizer,
       runner::ChatTemplate chat_template, runner::Session session,
       const runner::SamplerOptions& sampler_options, runner::Sampler sampler)
      : options_(options),
        tokenizer_(tokenizer),
        template_(std::move(chat_template)),
        session_(std::move(session)),
        generator_({.ignore_eos = options.ignore_eos, .print_text = true, .stop = &g_interrupted},
                   tokenizer, sampler_options, std::move(sampler)) {}

  // One message and its answer. A message that has no room is noted and left out.
  Status turn(const std::string& message) {
    interrupt_.arm();
    LD_ASSIGN_OR_RETURN(const runner::Encoding encoding, encode(message));
    std::vector<int32_t> tokens = not_fed_;
    tokens.insert(tokens.end(), encoding.ids.begin(), encoding.ids.end());
    if (static_cast<int64_t>(tokens.size()) >= room()) {
      print_note(
          fmt::format("the context is full: the message needs {} tokens and room for an "
                      "answer, {} of {} are left; start again, or with a larger -c",
                      tokens.size(), room(), session_.options().context_len));
      return {};
    }
    const Stopwatch watch;
    LD_RETURN_IF_ERROR(session_.prefill(tokens, Progress("prefill", options_.progress)));
    const double prefill_s = watch.seconds();
    const int64_t max_tokens = std::min(options_.num_predict, room());
    LD_ASSIGN_OR_RETURN(const Generated answer, generator_.run(max_tokens, session_));
    not_fed_.assign(answer.token_ids.begin() + answer.decode_steps, answer.token_ids.end());
    LD_RETURN_IF_ERROR(write_stdout("\n\n"));
    report(answer, static_cast<int64_t>(tokens.size()), prefill_s);
    return {};
  }

  // Waits for a line; nothing at the end of the input.
  Result<std::optional<std::string>> next_line() {
    interrupt_.arm();
    return read_line();
  }

 private:
  int64_t room() const { return session_.options().context_len - session_.num_tokens(); }

  Result<runner::Encoding> encode(const std::string& message) const {
    if (session_.num_tokens() > 0) return template_.encode_next(message, tokenizer_);
    const std::vector<runner::ChatMessage> messages = {{"user", message}};
    return template_.encode(messages, tokenizer_);
  }

  void report(const Generated& answer, int64_t prefilled, double prefill_s) const {
    if (answer.stop_reason == "interrupt") print_note("the answer was stopped");
    if (answer.stop_reason == "length") {
      const bool full = answer.token_ids.size() < static_cast<size_t>(options_.num_predict);
      print_note(full ? fmt::format("the context of {} tokens is full: the answer is cut; start "
                                    "again, or with a larger -c",
                                    session_.options().context_len)
                      : fmt::format("the answer is cut after -n {} tokens", options_.num_predict));
    }
    if (!options_.verbose) return;
    const auto rate = [](int64_t count, double seconds) {
      return count > 0 && seconds > 0.0 ? static_cast<double>(count) / seconds : 0.0;
    };
    fmt::print(stderr,
               "prefill {} tokens ({:.1f} tok/s), answer {} tokens ({:.1f} tok/s), context {}/{}\n",
               prefilled, rate(prefilled, prefill_s), answer.token_ids.size(),
               rate(answer.decode_steps, answer.total_s), session_.num_tokens(),
               session_.options().context_len);
  }

  const GenerateOptions& options_;
  const runner::Tokenizer& tokenizer_;
  runner::ChatTemplate template_;
  runner::Session session_;
  Generator generator_;
  InterruptGuard interrupt_;
  std::vector<int32_t> not_fed_;  // tokens of the last answer that the session lacks
};

// The first message: -p or -f, else nothing.
Result<std::optional<std::string>> first_message(const PromptOptions& prompt) {
  if (num_prompts(prompt) == 0) return std::optional<std::string>();
  LD_ASSIGN_OR_RETURN(std::string text, read_prompt(prompt, 0));
  return std::optional(std::move(text));
}

Status converse(Chat& chat, std::optional<std::string> message) {
  while (true) {
    if (message) LD_RETURN_IF_ERROR(chat.turn(*message));
    LD_ASSIGN_OR_RETURN(message, chat.next_line());
    if (!message) break;
    if (runner::utf8_valid_prefix(*message) < message->size()) {
      print_note("the line is not UTF-8 and is left out");
      message.reset();
    } else if (message->empty()) {
      message.reset();
    }
  }
  return {};
}

}  // namespace

Status run_chat(const GenerateOptions& options) {
  LD_ASSIGN_OR_RETURN(std::optional<std::string> message, first_message(options.prompt));
  LD_ASSIGN_OR_RETURN(const auto model, load_model(options.prompt.model_path));
  LD_RETURN_IF_ERROR(check_layers(options.session, model->config()));
  LD_ASSIGN_OR_RETURN(const auto tokenizer, model_tokenizer(model->file()));
  LD_ASSIGN_OR_RETURN(auto chat_template, runner::load_chat_template(model->file()));
  const int64_t model_context = model->config().context_len;
  if (options.context_len > model_context) {
    return invalid_argument("-c is {}; the context of the model is {} tokens", options.context_len,
                            model_context);
  }
  const int64_t room = options.context_len > 0 ? options.context_len : model_context;
  LD_ASSIGN_OR_RETURN(
      auto session, open_session(model, options.session, parse_method(decode_method(options, room)),
                                 options.context_len, options.progress));
  runner::SamplerOptions sampler_options = options.sampler;
  sampler_options.seed = choose_seed(options.seed);
  LD_ASSIGN_OR_RETURN(auto sampler, runner::Sampler::create(sampler_options));
  Chat chat(options, tokenizer, std::move(chat_template), std::move(session), sampler_options,
            std::move(sampler));
  return converse(chat, std::move(message));
}

}  // namespace longdecode::tool
