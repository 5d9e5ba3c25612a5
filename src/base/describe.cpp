#include "base/describe.h"

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/cpu.h"
#include "base/lock.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/types.h"
#include "base/view.h"
#include "openbnns/openbnns.h"

namespace obn {
namespace {

// A line of text that goes on being counted where its buffer ends.
class Line {
 public:
  Line(char* text, size_t capacity) : text_(text), capacity_(capacity) {}

  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) {
    const size_t used = length_ < capacity_ ? length_ : capacity_;
    va_list arguments;
    va_start(arguments, format);
    const int more = std::vsnprintf(capacity_ ? text_ + used : nullptr, capacity_ - used, format, arguments);
    va_end(arguments);
    if (more > 0) length_ += static_cast<size_t>(more);
  }
  // A name as one word: "fully_connected", "few_channels".
  void add_word(const char* before, const char* name) {
    add("%s", before);
    for (; *name; ++name) {
      const bool is_capital = *name >= 'A' && *name <= 'Z';
      add("%c", *name == ' ' ? '_' : is_capital ? *name - 'A' + 'a' : *name);
    }
  }
  void add_kinds(const Description& d) {
    for (size_t i = 0; i < kMostLayers && d.kinds[i]; ++i) {
      add_word(i > 0 ? "+" : "", d.kinds[i]);
    }
  }
  // "64x112x112:float32", slowest axis first.
  void add_shape(const View& view) {
    for (size_t k = view.rank; k > 0; --k) add(k > 1 ? "%zux" : "%zu", view.extent[k - 1]);
    add(":%s", name_of(view.type));
  }
  void add_inputs(const Description& d) {
    for (size_t i = 0; i < kMostLayers && d.inputs[i]; ++i) {
      if (i > 0) add("+");
      add_shape(*d.inputs[i]);
    }
  }

  int length() const { return static_cast<int>(length_); }

 private:
  char* text_;
  size_t capacity_;
  size_t length_ = 0;
};

}  // namespace

int describe_filter(const Filter& filter, size_t batch, char* text, size_t capacity) {
  const size_t saved = filter.kept_bytes(batch), work = filter.work_bytes(batch);
  if (saved == SIZE_MAX || work == SIZE_MAX) return -1;
  Description d;
  filter.describe(&d);
  Line line(text, capacity);
  line.add_word("family=", filter.kind());
  if (d.kinds[0]) {
    line.add(" kind=");
    line.add_kinds(d);
  }
  line.add_word(" forward=", d.forward);
  line.add_word(d.weight_gradient ? " input_gradient=" : " backward=", d.input_gradient);
  if (d.weight_gradient) line.add_word(" weight_gradient=", d.weight_gradient);
  line.add(" target=%s threads=%zu", name_of(isa()), threads_for(filter.options().threads));
  if (d.inputs[0]) {
    line.add(" input=");
    line.add_inputs(d);
  }
  if (d.output) {
    line.add(" output=");
    line.add_shape(*d.output);
  }
  line.add(" batch=%zu saved_bytes=%zu workspace_bytes=%zu", batch, saved, work);
  return line.length();
}

int describe_call(const Filter& filter, Pass pass, size_t batch, int status, double milliseconds, char* text,
                  size_t capacity) {
  Description d;
  filter.describe(&d);
  Line line(text, capacity);
  line.add_word("openbnns,", filter.kind());
  if (d.kinds[0]) {
    line.add(":");
    line.add_kinds(d);
  }
  const bool is_forward = pass == Pass::forward;
  line.add_word(is_forward ? ",forward," : ",backward,", is_forward ? d.forward : d.input_gradient);
  if (!is_forward && d.weight_gradient && std::strcmp(d.weight_gradient, d.input_gradient) != 0)
    line.add_word("+", d.weight_gradient);
  line.add(",batch%zu_", batch);
  line.add_inputs(d);
  if (d.output) {
    line.add("->");
    line.add_shape(*d.output);
  }
  if (status == 0) {
    line.add(",%.4f", milliseconds);
  } else {
    line.add(",failed");
  }
  return line.length();
}

bool is_verbose() {
  return once([] {
    const char* text = std::getenv("OPENBNNS_VERBOSE");
    return text && *text && std::strcmp(text, "0") != 0;
  });
}

// One write per line, so that those of several threads do not mix.
void print_call(const Filter& filter, Pass pass, size_t batch, int status, double milliseconds) {
  char line[512];
  const int length = describe_call(filter, pass, batch, status, milliseconds, line, sizeof line - 1);
  if (length < 0) return;
  const size_t end = std::strlen(line);
  line[end] = '\n';
  line[end + 1] = '\0';
  std::fputs(line, stderr);
}

}  // namespace obn

extern "C" int obn_filter_describe(BNNSFilter filter, size_t batch_size, char* text, size_t capacity) {
  const obn::Filter* found = obn::find_filter(filter);
  if (!found) return -1;
  if (!text && capacity > 0) return obn::fail("text: expected an array of %zu bytes; got NULL", capacity);
  return obn::describe_filter(*found, batch_size, text, capacity);
}
