// Attention, the desk: creation, checks and entry points. Letters as in attention.h.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "activation/activation.h"
#include "attention/attention_filter.h"
#include "base/describe.h"
#include "base/integer.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/system.h"
#include "base/types.h"
#include "openbnns/openbnns.h"

namespace obn::attention {

// What sentences call the parts of a projection and their gradients.
struct Words {
  const char *input, *weights, *bias;
  const char *input_gradient, *weights_gradient, *bias_gradient;
};

namespace {

constexpr char kKind[] = "attention";

// Rows and columns of the scores that are done at a time, at most: a block of keys and values and the scores of some
// rows stay in the second-level cache.
constexpr size_t kForwardRows = 256, kBackwardRows = 128, kColumns = 256;
constexpr size_t kFewestRows = 8, kFewestColumns = 16;

// The axis of the tuple's k-th coordinate: for a RowMajorMatrix (row, column) is size[1], size[0].
size_t tuple_axis(const View& view, size_t k) {
  return view.axis_of_size[view.layout == BNNSDataLayoutRowMajorMatrix ? 1 - k : k];
}
size_t extent_of(const View& view, size_t k) { return view.extent[tuple_axis(view, k)]; }
size_t stride_of(const View& view, size_t k) { return view.stride[tuple_axis(view, k)]; }

// A descriptor of plain float values with that many axes.
int read_plain(const BNNSNDArrayDescriptor& d, Access access, const char* word, size_t rank, View* view) {
  if (read_view(d, access, word, view) != 0) return -1;
  if (view->layout == BNNSDataLayoutFullyConnectedSparse || view->rank != rank)
    return fail("%s: expected a layout with %zu axes; got %s", word, rank, name_of(view->layout));
  if (!is_float_type(view->type))
    return fail("%s: expected float32, float16 or bfloat16; got %s", word, name_of(view->type));
  return 0;
}

constexpr Words kWords[] = {
    {"query.input", "query.weights", "query.bias",
     "query.input gradient", "query.weights gradient", "query.bias gradient"},
    {"key.input", "key.weights", "key.bias", "key.input gradient", "key.weights gradient", "key.bias gradient"},
    {"value.input", "value.weights", "value.bias",
     "value.input gradient", "value.weights gradient", "value.bias gradient"},
    {"output", "output.weights", "output.bias", "grad_output", "output.weights gradient", "output.bias gradient"}};
constexpr const Words &kQuery = kWords[0], &kKey = kWords[1], &kValue = kWords[2], &kOutput = kWords[3];

Weights weights_of(const View& view, size_t first) {  // first: 0 with inputs, 1 without (the tuple begins at the width)
  Weights w;
  w.data = view.data;
  w.type = view.type;
  w.accumulate = view.accumulate;
  if (first == 0) {
    w.inputs = extent_of(view, 0);
    w.input_step = stride_of(view, 0);
  }
  w.width = extent_of(view, 1 - first);
  w.width_step = stride_of(view, 1 - first);
  if (view.rank + first > 2) {
    w.heads = extent_of(view, 2 - first);
    w.head_step = stride_of(view, 2 - first);
  }
  return w;
}
// A vector.
Weights row_of(const View& view) {
  Weights w;
  w.data = view.data;
  w.type = view.type;
  w.accumulate = view.accumulate;
  w.width = view.extent[0];
  w.width_step = view.stride[0];
  return w;
}

int check_data(const View& view, Access access, const char* word) {
  size_t unused;
  return read_batch(view, view.data, 1, 0, access, word, &unused);
}

size_t even_part(size_t whole, size_t most) {
  const size_t parts = divide_up(whole, most);
  return divide_up(whole, parts);
}

// The largest blocks whose work fits in scratch; columns 0 when none does.
template <class Values>
Blocks fit_blocks(size_t t, size_t columns, size_t most_rows, size_t key_width, size_t value_width, Values values) {
  constexpr size_t kMost = kScratchBytes / sizeof(float);
  for (size_t rows = most_rows, most = kColumns; rows >= kFewestRows && most >= kFewestColumns; rows /= 2, most /= 2) {
    const Blocks blocks = {.rows = even_part(t, rows), .columns = even_part(columns, most)};
    const bool is_narrow = key_width < kMost / kColumns && value_width < kMost / kColumns;  // sums do not overflow
    if (is_narrow && values(blocks, key_width, value_width) <= kMost) return blocks;
  }
  return {};
}

}  // namespace

size_t forward_values(const Blocks& blocks, size_t key_width, size_t value_width) {
  return 2 * score_pitch(blocks.columns) + blocks.columns * kWidestTile + whole_tiles(blocks.rows) * key_width +
         blocks.columns * (key_width + value_width);
}

size_t backward_values(const Blocks& blocks, size_t key_width, size_t value_width) {
  const size_t pitch = score_pitch(blocks.columns), tiles = whole_tiles(blocks.columns);
  return (2 + 2 * blocks.rows) * pitch + (blocks.copied + tiles + blocks.columns) * (key_width + value_width) +
         blocks.columns * key_width;
}

size_t kept_backward_values(size_t t, size_t columns, size_t key_width, size_t value_width) {
  return columns * score_pitch(t) + (t + columns) * (key_width + value_width) + whole_tiles(t) * value_width;
}

// ---- creation ----

Attention::Attention(const Options& options) : Filter(kKind, options), stream_(0) {}

Attention::~Attention() { options().release(held_); }

void Attention::describe(Description* description) const {
  description->forward = forward_blocks_.columns ? "blocks" : "reference";
  description->input_gradient = keeps_scores_ ? "saved_scores" : backward_blocks_.columns ? "blocks" : "reference";
  description->inputs[0] = &q_.x;
  description->inputs[1] = &k_.x;
  description->inputs[2] = &v_.x;
  description->output = &o_.x;
}

// Query, key or value. `rows` 0: whatever there are.
int Attention::prepare_projection(const BNNSMHAProjectionParameters& p, const Words& words, size_t rows,
                                  Projection* to) {
  if (read_plain(p.target_desc, Access::read, words.input, 2, &to->x) != 0 ||
      read_plain(p.weights, Access::read, words.weights, 3, &to->w) != 0 ||
      check_data(to->w, Access::read, words.weights) != 0)
    return -1;
  to->rows = extent_of(to->x, 0);
  to->inputs = extent_of(to->x, 1);
  to->row = stride_of(to->x, 0);
  to->column = stride_of(to->x, 1);
  if (rows && to->rows != rows)
    return fail("%s: expected %zu rows, as many as there are keys; got %zu", words.input, rows, to->rows);
  to->weights = weights_of(to->w, 0);
  const Weights& w = to->weights;
  if (w.inputs != to->inputs)
    return fail("%s: expected weights for %zu inputs; got (%zu, %zu, %zu)", words.weights, to->inputs, w.inputs,
                w.width, w.heads);
  if (!p.bias.data) return 0;
  if (read_plain(p.bias, Access::read, words.bias, 2, &to->bias_view) != 0 ||
      check_data(to->bias_view, Access::read, words.bias) != 0)
    return -1;
  to->bias = weights_of(to->bias_view, 1);
  if (to->bias.width != w.width || to->bias.heads != w.heads)
    return fail("%s: expected (%zu, %zu), width and heads; got (%zu, %zu)", words.bias, w.width, w.heads,
                to->bias.width, to->bias.heads);
  return 0;
}

int Attention::prepare_output(const BNNSMHAProjectionParameters& p) {
  if (read_plain(p.target_desc, Access::write, "output", 2, &o_.x) != 0 ||
      read_plain(p.weights, Access::read, "output.weights", 2, &o_.w) != 0 ||
      check_data(o_.w, Access::read, "output.weights") != 0)
    return -1;
  o_.rows = extent_of(o_.x, 0);
  o_.row = stride_of(o_.x, 0);
  o_.column = stride_of(o_.x, 1);
  const size_t columns = extent_of(o_.x, 1);
  if (o_.rows != t_) return fail("output: expected %zu rows, as many as there are queries; got %zu", t_, o_.rows);
  o_.weights = weights_of(o_.w, 0);
  o_.inputs = o_.weights.inputs;
  if (o_.inputs != value_columns() || o_.weights.width != columns)
    return fail("output.weights: expected (%zu, %zu), heads·d_value and outputs; got (%zu, %zu)", value_columns(),
                columns, o_.inputs, o_.weights.width);
  if (!p.bias.data) return 0;
  if (read_plain(p.bias, Access::read, "output.bias", 1, &o_.bias_view) != 0 ||
      check_data(o_.bias_view, Access::read, "output.bias") != 0)
    return -1;
  o_.bias = row_of(o_.bias_view);
  if (o_.bias.width != columns)
    return fail("output.bias: expected %zu values; got %zu", columns, o_.bias.width);
  return 0;
}

int Attention::prepare_attention_bias(const BNNSNDArrayDescriptor& d, const char* word, size_t width, View* view,
                                      Weights* weights) {
  if (read_plain(d, Access::read, word, 2, view) != 0 || check_data(*view, Access::read, word) != 0) return -1;
  *weights = weights_of(*view, 1);
  if (weights->width == width && weights->heads == heads_) return 0;
  return fail("%s: expected (%zu, %zu), width and heads; got (%zu, %zu)", word, width, heads_, weights->width,
              weights->heads);
}

int Attention::prepare(const BNNSLayerParametersMultiheadAttention& p) {
  if (prepare_projection(p.query, kQuery, 0, &q_) != 0 || prepare_projection(p.key, kKey, 0, &k_) != 0 ||
      prepare_projection(p.value, kValue, k_.rows, &v_) != 0)
    return -1;
  t_ = q_.rows;
  s_ = k_.rows;
  heads_ = q_.weights.heads;
  key_width_ = k_.weights.width;
  value_width_ = v_.weights.width;
  if (q_.weights.width != key_width_)
    return fail("query.weights: expected heads of width %zu, like those of the key; got %zu", key_width_,
                q_.weights.width);
  if (k_.weights.heads != heads_ || v_.weights.heads != heads_)
    return fail("key.weights, value.weights: expected %zu heads, like those of the query; got %zu and %zu", heads_,
                k_.weights.heads, v_.weights.heads);
  if (prepare_output(p.output) != 0) return -1;
  if (!p.key_attn_bias.data != !p.value_attn_bias.data)
    return fail("key_bias, value_bias: expected both or neither; got only one");
  has_attention_bias_ = p.key_attn_bias.data;
  if (has_attention_bias_ &&
      (prepare_attention_bias(p.key_attn_bias, "key_bias", key_width_, &key_bias_view_, &key_bias_) != 0 ||
       prepare_attention_bias(p.value_attn_bias, "value_bias", value_width_, &value_bias_view_, &value_bias_) != 0))
    return -1;
  adds_zero_ = p.add_zero_attn;
  if (p.dropout > 0.0f && p.dropout < 1.0f) {
    threshold_ = static_cast<uint32_t>(std::max(1.0, static_cast<double>(p.dropout) * 0x1p32));
    factor_ = static_cast<float>(1.0 / (1.0 - static_cast<double>(p.dropout)));
    stream_ = RandomStream(p.seed ? p.seed : unpredictable_seed());
  }
  forward_blocks_ = fit_blocks(t_, s_ + extra(), kForwardRows, key_width_, value_width_, forward_values);
  backward_blocks_ = fit_blocks(t_, s_ + extra(), kBackwardRows, key_width_, value_width_, backward_values);
  Blocks all_copied = backward_blocks_;
  all_copied.copied = t_;
  if (backward_blocks_.columns > 0 && t_ < kScratchBytes / (key_width_ + value_width_) &&
      backward_values(all_copied, key_width_, value_width_) <= kScratchBytes / sizeof(float))
    backward_blocks_ = all_copied;
  keeps_scores_ = !has_dropout() && forward_blocks_.rows == t_ && forward_blocks_.columns == s_ + extra() &&
                  kept_backward_values(t_, s_ + extra(), key_width_, value_width_) <= kScratchBytes / sizeof(float);
  return options().use_client_ptr ? 0 : hold();
}

// Copies all parameters, as float32: weights as matrices (inputs, columns), biases as rows.
int Attention::hold() {
  Weights* all[] = {&q_.weights, &k_.weights, &v_.weights, &o_.weights, &q_.bias,
                    &k_.bias,    &v_.bias,    &o_.bias,    &key_bias_,  &value_bias_};
  for (const bool counts : {true, false}) {
    Workspace copies(static_cast<std::byte*>(held_));
    for (Weights* w : all) {
      if (!w->data) continue;
      float* copy = copies.take<float>(w->inputs, w->columns());
      if (counts) continue;
      const Weights held = packed_like(*w, copy);
      copy_weights(*w, held, 1);
      *w = held;
    }
    if (!counts) continue;
    if (copies.used() == SIZE_MAX) return fail("weights: expected a size that can be addressed; it overflows");
    held_ = options().get(copies.used());
    if (!held_) return -1;
  }
  return 0;
}

int Attention::set_causal(int on) {
  if (on != 0 && on != 1) return fail("causal: expected 0 or 1; got %d", on);
  causal_.store(on != 0, std::memory_order_relaxed);
  return 0;
}

// ---- checks ----

namespace {

int read_input(const Projection& p, const void* data, size_t batch, size_t requested, const char* word, Batch* to) {
  size_t step;
  if (read_batch(p.x, data, batch, requested, Access::read, word, &step) != 0) return -1;
  *to = {data, p.x.type, step, p.row, p.column};
  return 0;
}

}  // namespace

int Attention::check_inputs(size_t batch, const void* q, size_t q_stride, const void* k, size_t k_stride, const void* v,
                            size_t v_stride, bool needs_q, bool needs_k, bool needs_v, Job* job) const {
  if ((needs_q || q) && read_input(q_, q, batch, q_stride, "query", &job->q) != 0) return -1;
  if ((needs_k || k) && read_input(k_, k, batch, k_stride, "key", &job->k) != 0) return -1;
  return (needs_v || v) ? read_input(v_, v, batch, v_stride, "value", &job->v) : 0;
}

int Attention::check_hidden(const BNNSNDArrayDescriptor* hidden, size_t stride, Job* job) const {
  if (!hidden) return 0;
  if (read_view(*hidden, Access::read, "key_mask", &job->hidden_view) != 0) return -1;
  const View& view = job->hidden_view;
  if (view.rank != 1 || view.type != BNNSDataTypeBoolean || view.extent[0] != s_) {
    ShapeText got;
    return fail("key_mask: expected %zu booleans, one per key; got %s of %s", s_, shape_text(view, &got),
                name_of(view.type));
  }
  if (read_batch(view, view.data, job->batch, stride, Access::read, "key_mask", &job->hidden_batch) != 0) return -1;
  job->hidden = static_cast<const uint8_t*>(view.data);
  job->hidden_step = view.stride[0];
  return 0;
}

int Attention::check_added(const BNNSNDArrayDescriptor* added, Job* job) const {
  if (!added) return 0;
  const char* word = "attention_bias";
  if (read_view(*added, Access::read, word, &job->added_view) != 0) return -1;
  const View& view = job->added_view;
  if (!is_float_type(view.type) && view.type != BNNSDataTypeBoolean)
    return fail("%s: expected float32, float16, bfloat16 or booleans; got %s", word, name_of(view.type));
  const size_t expected[] = {job->batch, heads_, t_, s_};
  bool fits = view.rank >= 2 && view.rank <= 4 && view.layout != BNNSDataLayoutFullyConnectedSparse;
  for (size_t i = 0; fits && i < view.rank; ++i) fits = extent_of(view, i) == expected[4 - view.rank + i];
  if (!fits) {
    ShapeText got;
    return fail("%s: expected (%zu, %zu), with %zu heads before it, or samples and heads; got %s in layout %s", word,
                t_, s_, heads_, shape_text(view, &got), name_of(view.layout));
  }
  if (check_data(view, Access::read, word) != 0) return -1;
  job->added = {view.data, view.type, stride_of(view, view.rank - 2), stride_of(view, view.rank - 1)};
  if (view.rank > 2) job->added_head = stride_of(view, view.rank - 3);
  if (view.rank > 3) job->added_batch = stride_of(view, 0);
  return 0;
}

int Attention::find_work(size_t bytes, const size_t* given_size, void* given, Job* job) const {
  if (!scratch()) return -1;
  if (!given) return find_workspace(bytes, &job->work);
  if (!given_size) return fail("workspace_size: expected the size of the workspace; got NULL");
  if (*given_size < bytes) return fail("workspace: expected %zu bytes; got %zu", bytes, *given_size);
  job->work = aligned(given);
  job->given_work = given;
  job->work_view = view_of_bytes(bytes);
  return 0;
}

struct Places {
  Place list[18];
  size_t count = 0;

  void add(const char* word, const View& view, const void* data, size_t step = 0, size_t batch = 1) {
    if (data) list[count++] = {word, &view, data, step, batch};
  }
};

void Attention::add_reads(const Job& job, bool is_forward, Places* reads) const {
  const size_t n = job.batch;
  reads->add("query", q_.x, job.q.data, job.q.step, n);
  reads->add("key", k_.x, job.k.data, job.k.step, n);
  reads->add("value", v_.x, job.v.data, job.v.step, n);
  reads->add("key_mask", job.hidden_view, job.hidden, job.hidden_batch, n);
  reads->add("attention_bias", job.added_view, job.added.data);
  if (!is_forward) reads->add("grad_output", job.dy_view, job.dy.data, job.dy.step, n);
  if (!options().use_client_ptr) return;
  const Projection* projections[] = {&q_, &k_, &v_, &o_};
  for (size_t i = 0; i < 4; ++i) {
    reads->add(kWords[i].weights, projections[i]->w, projections[i]->weights.data);
    reads->add(kWords[i].bias, projections[i]->bias_view, projections[i]->bias.data);
  }
  reads->add("key_bias", key_bias_view_, key_bias_.data);
  reads->add("value_bias", value_bias_view_, value_bias_.data);
}

// Gradients of inputs may be one and the same. The caller's cache and workspace are written in any order.
void Attention::add_writes(const Job& job, bool is_forward, Places* writes) const {
  writes->add("cache", job.cache_view, job.cache);
  writes->add("workspace", job.work_view, job.given_work);
  if (is_forward) return writes->add("output", o_.x, job.y.data, job.y.step, job.batch);
  const Delta* deltas[] = {&job.dq, &job.dk, &job.dv, &job.output};
  for (size_t i = 0; i < 4; ++i) {
    const Delta& d = *deltas[i];
    bool is_repeated = false;
    for (size_t l = 0; l < i; ++l) is_repeated |= d.x.data == deltas[l]->x.data;
    if (!is_repeated) writes->add(kWords[i].input_gradient, d.x_view, d.x.data, d.x.step, job.batch);
    writes->add(kWords[i].weights_gradient, d.w_view, d.weights.data);
    writes->add(kWords[i].bias_gradient, d.bias_view, d.bias.data);
  }
  writes->add("key_bias gradient", job.key_bias_view, job.key_bias.data);
  writes->add("value_bias gradient", job.value_bias_view, job.value_bias.data);
}

// What is written lies apart from what is read and from everything else that is written.
int Attention::check_places(const Job& job, bool is_forward) const {
  Places writes, reads;
  add_reads(job, is_forward, &reads);
  add_writes(job, is_forward, &writes);
  for (size_t i = 0; i < writes.count; ++i) {
    for (size_t l = 0; l < reads.count; ++l)
      if (check_apart(writes.list[i], reads.list[l]) != 0) return -1;
    for (size_t l = 0; l < i; ++l)
      if (check_apart(writes.list[i], writes.list[l]) != 0) return -1;
  }
  return 0;
}

// ---- forward ----

int Attention::check_cache(size_t batch, size_t size, const void* cache) const {
  const size_t bytes = cache_bytes(batch);
  if (size < bytes) return fail("cache: expected %zu bytes; got %zu", bytes, size);
  if (reinterpret_cast<uintptr_t>(cache) % alignof(float) != 0)
    return fail("cache: expected an address aligned to %zu bytes; got %p", alignof(float), cache);
  return 0;
}

namespace {

int fail_as_too_large() { return fail("batch_size: expected sizes that can be addressed; they overflow"); }

}  // namespace

int Attention::forward(const Forward& a) {
  const bool asks_cache = a.cache_size && !a.cache, asks_work = a.work_size && !a.work;
  if (asks_cache || asks_work) {
    const size_t cache = cache_bytes(a.batch), work = plan_bytes(a.batch, false, a.cache || asks_cache);
    if (cache == SIZE_MAX || work == SIZE_MAX) return fail_as_too_large();
    if (asks_cache) *a.cache_size = cache;
    if (asks_work) *a.work_size = work;
    return 0;
  }
  if (a.batch == 0) return 0;
  Job job;
  job.batch = a.batch;
  if (check_inputs(a.batch, a.q, a.q_stride, a.k, a.k_stride, a.v, a.v_stride, true, true, true, &job) != 0 ||
      check_hidden(a.hidden, a.hidden_stride, &job) != 0 || check_added(a.added, &job) != 0)
    return -1;
  size_t step;
  if (read_batch(o_.x, a.y, a.batch, a.y_stride, Access::write, "output", &step) != 0) return -1;
  job.y = {a.y, o_.x.type, step, o_.row, o_.column};
  const size_t bytes = plan_bytes(a.batch, false, a.cache);
  if (bytes == SIZE_MAX || cache_bytes(a.batch) == SIZE_MAX) return fail_as_too_large();
  if (a.cache) {
    if (!a.cache_size) return fail("cache_size: expected the size of the cache; got NULL");
    if (check_cache(a.batch, *a.cache_size, a.cache) != 0) return -1;
    job.cache = static_cast<std::byte*>(a.cache);
    job.cache_view = view_of_bytes(cache_bytes(a.batch));
  }
  if (find_work(bytes, a.work_size, a.work, &job) != 0 || check_places(job, true) != 0) return -1;
  run_forward(job);
  return 0;
}

// ---- backward ----

int Attention::check_cache_for_backward(const Backward& a, Job* job) const {
  if (!a.cache || a.cache_size == 0) {
    if (has_dropout()) return fail("cache: expected what apply filled, which holds what was dropped; got none");
    return 0;
  }
  if (check_cache(a.batch, a.cache_size, a.cache) != 0) return -1;
  CacheHeader header;
  std::memcpy(&header, a.cache, sizeof header);
  const CacheHeader expected = header_of(a.batch, header.start);
  if (std::memcmp(&header, &expected, sizeof header) != 0)
    return fail("cache: expected what apply filled for %zu samples of this layer; got something else", a.batch);
  job->cache = static_cast<std::byte*>(a.cache);
  job->cache_view = view_of_bytes(cache_bytes(a.batch));
  return 0;
}

namespace {

// The gradient of weights or a bias, shaped like them.
int read_parameter_gradient(const BNNSNDArrayDescriptor& d, const View& like, const char* word, View* view) {
  size_t unused;
  return read_gradient(d, like, Access::write, 1, 0, word, view, &unused);
}

int need(const void* data, const char* word, const char* why) {
  return data ? 0 : fail("%s: expected its values, which %s; got NULL", word, why);
}

}  // namespace

int Attention::check_delta(BNNSMHAProjectionParameters* delta, const Projection& like, const Words& words,
                           Job* job, Delta* to) {
  if (!delta) return 0;
  const bool is_output = &like == &o_;
  if (delta->target_desc.data && !is_output) {
    size_t step;
    if (read_gradient(delta->target_desc, like.x, Access::write, job->batch, delta->target_desc.stride[2],
                      words.input_gradient, &to->x_view, &step) != 0)
      return -1;
    const View& view = to->x_view;
    to->x = {view.data, view.type, step, stride_of(view, 0), stride_of(view, 1)};
    to->x_accumulates = view.accumulate;
  }
  if (delta->weights.data) {
    if (read_parameter_gradient(delta->weights, like.w, words.weights_gradient, &to->w_view) != 0) return -1;
    to->weights = weights_of(to->w_view, 0);
  }
  if (delta->bias.data) {
    if (!like.bias.data) return fail("%s: expected none, as the layer has no such bias; got one", words.bias_gradient);
    if (read_parameter_gradient(delta->bias, like.bias_view, words.bias_gradient, &to->bias_view) != 0) return -1;
    to->bias = is_output ? row_of(to->bias_view) : weights_of(to->bias_view, 1);
  }
  return 0;
}

int Attention::check_aliases(const Job& job) const {
  const Delta* deltas[] = {&job.dq, &job.dk, &job.dv};
  for (size_t i = 0; i < 3; ++i) {
    for (size_t l = 0; l < i; ++l) {
      const Delta &a = *deltas[i], &b = *deltas[l];
      if (!a.x.data || a.x.data != b.x.data) continue;
      bool same = a.x.step == b.x.step && a.x.row == b.x.row && a.x.column == b.x.column &&
                  a.x_accumulates == b.x_accumulates;
      for (size_t k = 0; k < 2; ++k) same = same && extent_of(a.x_view, k) == extent_of(b.x_view, k);
      if (!same)
        return fail("query, key, value gradients: expected one shape, strides and flag for those that share memory; "
                    "got different ones");
    }
  }
  return 0;
}

int Attention::check_deltas(const Backward& a, Job* job) {
  if (!a.output || (!a.output->target_desc.data && a.batch > 0))
    return fail("grad_output: expected output_param_delta->target_desc with data; got NULL");
  size_t step;
  if (read_gradient(a.output->target_desc, o_.x, Access::read, a.batch, a.output->target_desc.stride[2], "grad_output",
                    &job->dy_view, &step) != 0)
    return -1;
  job->dy = {job->dy_view.data, job->dy_view.type, step, stride_of(job->dy_view, 0), stride_of(job->dy_view, 1)};
  if (check_delta(a.dq, q_, kQuery, job, &job->dq) != 0 || check_delta(a.dk, k_, kKey, job, &job->dk) != 0 ||
      check_delta(a.dv, v_, kValue, job, &job->dv) != 0 ||
      check_delta(a.output, o_, kOutput, job, &job->output) != 0)
    return -1;
  for (const bool is_key : {true, false}) {
    const BNNSNDArrayDescriptor* d = is_key ? a.key_bias : a.value_bias;
    if (!d || !d->data) continue;
    const char* word = is_key ? "key_bias gradient" : "value_bias gradient";
    if (!has_attention_bias_) return fail("%s: expected none, as the layer has no such bias; got one", word);
    View* view = is_key ? &job->key_bias_view : &job->value_bias_view;
    if (read_parameter_gradient(*d, is_key ? key_bias_view_ : value_bias_view_, word, view) != 0) return -1;
    (is_key ? job->key_bias : job->value_bias) = weights_of(*view, 1);
  }
  return check_aliases(*job);
}

int Attention::check_types() const {
  const View* views[] = {&q_.x, &k_.x, &v_.x, &o_.x, &q_.w, &k_.w, &v_.w, &o_.w};
  for (const View* view : views)
    if (view->type != BNNSDataTypeFloat32)
      return fail("gradients: expected float32 inputs, output and weights; got %s", name_of(view->type));
  const View* biases[] = {&q_.bias_view, &k_.bias_view,    &v_.bias_view,
                          &o_.bias_view, &key_bias_view_, &value_bias_view_};
  for (const View* view : biases)
    if (view->rank > 0 && view->type != BNNSDataTypeFloat32)
      return fail("gradients: expected float32 biases; got %s", name_of(view->type));
  return 0;
}

int Attention::backward(const Backward& a) {
  const bool has_cache = a.cache && a.cache_size > 0;
  if (a.work_size && !a.work) {
    const size_t bytes = plan_bytes(a.batch, true, has_cache);
    if (bytes == SIZE_MAX) return fail_as_too_large();
    *a.work_size = bytes;
    return 0;
  }
  Job job;
  job.batch = a.batch;
  if (check_types() != 0 || check_deltas(a, &job) != 0) return -1;
  if (a.batch == 0) {
    if (check_places(job, false) != 0) return -1;
    job.clear_sums();
    return 0;
  }
  const bool repeats = !has_cache && (job.wants_core() || job.output.weights.data);
  if ((has_cache || repeats) && check_cache_for_backward(a, &job) != 0) return -1;
  const char* why = repeats ? "the forward pass is computed again from" : "the gradient of the weights needs";
  if ((repeats || job.dq.weights.data) && need(a.q, "query", why) != 0) return -1;
  if ((repeats || job.dk.weights.data) && need(a.k, "key", why) != 0) return -1;
  if ((repeats || job.dv.weights.data) && need(a.v, "value", why) != 0) return -1;
  if (check_inputs(a.batch, a.q, a.q_stride, a.k, a.k_stride, a.v, a.v_stride, false, false, false, &job) != 0 ||
      check_hidden(a.hidden, a.hidden_stride, &job) != 0 || check_added(a.added, &job) != 0)
    return -1;
  const size_t bytes = plan_bytes(a.batch, true, has_cache);
  if (bytes == SIZE_MAX) return fail_as_too_large();
  if (find_work(bytes, a.work_size, a.work, &job) != 0 || check_places(job, false) != 0) return -1;
  run_backward(job);
  return 0;
}

// ---- entry points ----

namespace {

BNNSFilter create(const BNNSLayerParametersMultiheadAttention* layer_params,
                  const BNNSFilterParameters* filter_params) {
  if (!layer_params) {
    fail("layer_params: expected parameters; got NULL");
    return nullptr;
  }
  Options options;
  if (Options::read(filter_params, &options) != 0) return nullptr;
  Attention* filter = options.make<Attention>(options);
  if (!filter) return nullptr;
  if (filter->prepare(*layer_params) != 0) {
    destroy(filter);
    return nullptr;
  }
  return publish(filter);
}

Attention* find(BNNSFilter handle) { return static_cast<Attention*>(find_filter(handle, kKind)); }

}  // namespace
}  // namespace obn::attention

using obn::attention::Attention;

extern "C" {

BNNSFilter BNNSFilterCreateLayerMultiheadAttention(const BNNSLayerParametersMultiheadAttention* layer_params,
                                                   const BNNSFilterParameters* filter_params) {
  return obn::attention::create(layer_params, filter_params);
}

int BNNSApplyMultiheadAttention(BNNSFilter F, size_t batch_size, const void* query, size_t query_stride,
                                const void* key, size_t key_stride, const BNNSNDArrayDescriptor* key_mask,
                                size_t key_mask_stride, const void* value, size_t value_stride, void* output,
                                size_t output_stride, const BNNSNDArrayDescriptor* add_to_attention,
                                size_t* backprop_cache_size, void* backprop_cache, size_t* workspace_size,
                                void* workspace) {
  Attention* filter = obn::attention::find(F);
  if (!filter) return -1;
  return obn::call_filter(filter, obn::Pass::forward, batch_size, [&] {
    return filter->forward({.batch = batch_size, .q = query, .q_stride = query_stride, .k = key,
                            .k_stride = key_stride, .hidden = key_mask, .hidden_stride = key_mask_stride, .v = value,
                            .v_stride = value_stride, .y = output, .y_stride = output_stride,
                            .added = add_to_attention, .cache_size = backprop_cache_size, .cache = backprop_cache,
                            .work_size = workspace_size, .work = workspace});
  });
}

int BNNSApplyMultiheadAttentionBackward(
    BNNSFilter F, size_t batch_size, const void* query, size_t query_stride,
    BNNSMHAProjectionParameters* query_param_delta, const void* key, size_t key_stride,
    const BNNSNDArrayDescriptor* key_mask, size_t key_mask_stride, BNNSMHAProjectionParameters* key_param_delta,
    const void* value, size_t value_stride, BNNSMHAProjectionParameters* value_param_delta,
    const BNNSNDArrayDescriptor* add_to_attention, BNNSNDArrayDescriptor* key_attn_bias_delta,
    BNNSNDArrayDescriptor* value_attn_bias_delta, const void* /* output: not needed */, size_t /* its stride */,
    BNNSMHAProjectionParameters* output_param_delta, size_t backprop_cache_size, void* backprop_cache,
    size_t* workspace_size, void* workspace) {
  Attention* filter = obn::attention::find(F);
  if (!filter) return -1;
  return obn::call_filter(filter, obn::Pass::backward, batch_size, [&] {
    return filter->backward({.batch = batch_size, .q = query, .q_stride = query_stride, .dq = query_param_delta,
                             .k = key, .k_stride = key_stride, .hidden = key_mask, .hidden_stride = key_mask_stride,
                             .dk = key_param_delta, .v = value, .v_stride = value_stride, .dv = value_param_delta,
                             .added = add_to_attention, .key_bias = key_attn_bias_delta,
                             .value_bias = value_attn_bias_delta, .output = output_param_delta,
                             .cache_size = backprop_cache_size, .cache = backprop_cache, .work_size = workspace_size,
                             .work = workspace});
  });
}

int obn_attention_set_causal(BNNSFilter filter, int on) {
  Attention* attention = obn::attention::find(filter);
  return attention ? attention->set_causal(on) : -1;
}
}
