// Expressions of letters, read and matched with the axes of the tensors.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/status.h"
#include "matmul/matmul.h"

namespace obn::matmul {

// ---- grammar ----
//
//   expression := operand [ "," operand ] "->" operand
//   operand    := name "_" [ "*" ] letters [ "*" ]
//
// White space is free.

namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Reads a text from left to right.
class Reader {
 public:
  explicit Reader(const char* text) : text_(text), at_(text) {}

  char next() {
    while (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r') ++at_;
    return *at_;
  }
  bool take(char c) {
    if (next() != c) return false;
    ++at_;
    return true;
  }
  int expected(const char* what) const {
    return fail("expression: expected %s at character %zu; got \"%.200s\"", what, static_cast<size_t>(at_ - text_),
                text_);
  }

 private:
  const char* text_;
  const char* at_;
};

int read_word(Reader* reader, Word* word) {
  size_t length = 0;
  for (char c; is_letter(c = reader->next()); reader->take(c)) {
    if (length + 1 == Word::kNameSize) return reader->expected("a name of at most 31 letters");
    word->name[length++] = c;
  }
  if (length == 0) return reader->expected("a name");
  if (!reader->take('_')) return reader->expected("an underscore behind a name");
  word->star_first = reader->take('*');
  for (char c; is_letter(c = reader->next()); reader->take(c)) {
    if (word->count == BNNS_MAX_TENSOR_DIMENSION) return reader->expected("at most 8 letters");
    word->letters[word->count++] = c;
  }
  if (!reader->take('*')) return 0;
  if (word->star_first) return reader->expected("one star at most");
  word->star_last = true;
  return 0;
}

}  // namespace

int Expression::read(const char* text, Expression* expression) {
  Expression& e = *expression;
  if (!text) return fail("expression: expected a text like \"a_ij, b_jk -> c_ik\"; got NULL");
  Reader reader(text);
  if (read_word(&reader, &e.word[kA]) != 0) return -1;
  e.inputs = 1;
  if (reader.take(',')) {
    if (read_word(&reader, &e.word[kB]) != 0) return -1;
    e.inputs = 2;
  }
  if (!reader.take('-') || !reader.take('>')) return reader.expected("an arrow, ->,");
  if (read_word(&reader, &e.word[kC]) != 0) return -1;
  if (reader.next() != '\0') return reader.expected("the end");
  return 0;
}

bool Expression::is_square() const { return inputs == 2 && std::strcmp(word[kA].name, word[kB].name) == 0; }

// ---- axes ----

namespace {

// The k-th coordinate of the layout's tuple, as an axis of the view: (row, column) of a RowMajorMatrix, otherwise in
// the order of size.
size_t axis_of_tuple(const View& view, size_t k) {
  return view.axis_of_size[view.layout == BNNSDataLayoutRowMajorMatrix ? view.rank - 1 - k : k];
}

// What the indices are found by: letters by themselves, those of a star by their place in it, counted from the side
// where the letters are. A star's indices have numbers below all letters.
class Indices {
 public:
  Indices(const char* text, const char* const* words, bool letters_spread, Form* form)
      : text_(text), words_(words), letters_spread_(letters_spread), form_(*form) {}

  int add(size_t tensor, const Word& word, const View& view) {
    // Without letters: a single value.
    if (word.count == 0 && !word.has_star() && view.count == 1) return 0;
    const size_t stars = view.rank >= word.count ? view.rank - word.count : 0;
    if (view.rank < word.count || (stars > 0 && !word.has_star())) {
      ShapeText got;
      return fail("%s: expected %zu axes%s in \"%.200s\"; got %s", words_[tensor], word.count,
                  word.has_star() ? " or more" : "", text_, shape_text(view, &got));
    }
    const size_t first = word.star_first ? stars : 0;
    for (size_t k = 0; k < view.rank; ++k) {
      const bool is_named = k >= first && k < first + word.count;
      const size_t axis = axis_of_tuple(view, k);
      const int key = is_named          ? word.letters[k - first]
                      : word.star_first ? static_cast<int>(stars - 1 - k)
                                        : static_cast<int>(k - word.count);
      if (add_axis(tensor, key, axis, view.extent[axis]) != 0) return -1;
    }
    return 0;
  }

  // What a star stands for is never summed.
  int check_stars() const {
    for (size_t i = 0; i < form_.count; ++i)
      if (is_star(key_[i]) && !is_in_[i][kC] && form_.extent[i] > 1)
        return fail("output: expected the axes of the star in \"%.200s\", which are never summed; got none", text_);
    return 0;
  }

 private:
  static bool is_star(int key) { return key < static_cast<int>(BNNS_MAX_TENSOR_DIMENSION); }

  size_t find(int key) const {
    size_t i = 0;
    while (i < form_.count && key_[i] != key) ++i;
    return i;
  }

  int add_axis(size_t tensor, int key, size_t axis, size_t extent) {
    const size_t i = find(key);
    if (i == form_.count) {
      if (tensor == kC && !is_star(key))
        return fail("output: expected letters of the inputs in \"%.200s\"; got %c", text_, key);
      key_[i] = key;
      std::fill_n(is_in_[i], kTensors, false);
      std::fill_n(form_.axes[i], kTensors, uint8_t{0});
      form_.extent[i] = tensor == kC ? 1 : extent;
      ++form_.count;
    }
    const bool repeats = is_in_[i][tensor], may_spread = tensor != kC && (is_star(key) || letters_spread_);
    size_t& all = form_.extent[i];
    const size_t before = form_.axes[i][tensor] ? all : 1;  // of this tensor's other axis
    const bool fits = repeats ? extent == before : extent == all || (may_spread && (extent == 1 || all == 1));
    if (!fits) return refuse(tensor, key, all, extent);
    all = std::max(all, extent);
    is_in_[i][tensor] = true;
    if (extent == 1) return 0;
    form_.repeats[tensor] |= repeats;
    form_.axes[i][tensor] |= static_cast<uint8_t>(1u << axis);
    return 0;
  }

  int refuse(size_t tensor, int key, size_t expected, size_t got) const {
    if (is_star(key))
      return fail("%s: expected extent %zu for an axis of the star in \"%.200s\"; got %zu", words_[tensor], expected,
                  text_, got);
    return fail("%s: expected extent %zu along %c of \"%.200s\"; got %zu", words_[tensor], expected, key, text_, got);
  }

  const char* text_;
  const char* const* words_;
  bool letters_spread_;
  Form& form_;
  int key_[kMostIndices];
  bool is_in_[kMostIndices][kTensors];
};

}  // namespace

int Form::read(const Expression& e, const char* text, const View* const* views, const char* const* words, Form* form) {
  bool star_first = false, star_last = false;
  for (const Word& word : e.word) {
    star_first |= word.star_first;
    star_last |= word.star_last;
  }
  if (star_first && star_last)
    return fail("expression: expected all stars at the same end; got \"%.200s\"", text);
  Indices indices(text, words, e.letters_spread, form);
  for (size_t t = 0; t < kTensors; ++t) {
    if (t == kB && e.inputs == 1) continue;
    if (indices.add(t, e.word[t], *views[t]) != 0) return -1;
  }
  return indices.check_stars();
}

}  // namespace obn::matmul
