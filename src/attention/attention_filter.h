// The attention layer: what attention.cpp (creation, checks, entry points) and attention_run.cpp (the passes) share.
// Letters as in attention.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "attention/attention.h"
#include "base/filter.h"
#include "base/random.h"
#include "base/view.h"
#include "base/workspace.h"
#include "fully_connected/fully_connected.h"
#include "gemm/gemm.h"

namespace obn::attention {

// A batch of matrices: value (b, i, j) lies at data[b·step + i·row + j·column].
struct Batch {
  const void* data = nullptr;
  BNNSDataType type = BNNSDataTypeFloat32;
  size_t step = 0, row = 0, column = 0;

  float* floats() const { return static_cast<float*>(const_cast<void*>(data)); }
  gemm::Operand operand() const { return {data, row, column, type}; }
  gemm::Operand turned() const { return {data, column, row, type}; }
  bool is_tall(size_t batch, size_t rows) const { return batch == 1 || step == rows * row; }  // one matrix
};

// Weights (inputs, width, heads) or a bias (width, heads), which has one input; for the output (H·d_value) inputs, one
// head as wide as the output. Column h·width + w of the matrix is value w of head h.
struct Weights {
  const void* data = nullptr;  // NULL: no bias
  BNNSDataType type = BNNSDataTypeFloat32;
  size_t inputs = 1, width = 0, heads = 1;
  size_t input_step = 0, width_step = 0, head_step = 0;
  bool accumulate = false;  // gradients

  size_t columns() const { return width * heads; }
  bool is_matrix() const { return width == 1 || heads == 1 || head_step == width * width_step; }
  size_t column_step() const { return width == 1 ? head_step : width_step; }
  gemm::Operand operand() const { return {data, input_step, column_step(), type}; }
  gemm::Operand turned() const { return {data, column_step(), input_step, type}; }
};

// Float32 copies: as a matrix (inputs, columns), or turned where the inputs are the runs. `to` (inputs · columns).
Weights packed_like(const Weights& weights, const float* to, bool turned = false);
void copy_weights(const Weights& weights, const Weights& to, size_t threads);

// One of query, key, value, output: rows (inputs) times weights.
struct Projection {
  View x;        // the rows: T or S of them; for the output the result
  size_t rows = 0, inputs = 0;
  size_t row = 0, column = 0;  // strides of x
  View w, bias_view;
  Weights weights, bias;
};

// Gradients of one projection that a call asks for; data NULL where it does not.
struct Delta {
  View x_view, w_view, bias_view;
  Batch x;
  bool x_accumulates = false;
  Weights weights, bias;

  bool any() const { return x.data || weights.data || bias.data; }
};

// What a call works on, checked.
struct Job {
  size_t batch = 0;
  Batch q, k, v;           // inputs; data NULL where the call does without
  View hidden_view;
  const uint8_t* hidden = nullptr;
  size_t hidden_batch = 0, hidden_step = 0;
  View added_view;
  Added added;
  size_t added_batch = 0, added_head = 0;
  Batch y, dy;             // the result of a forward pass; its gradient for a backward pass
  View dy_view;
  Delta dq, dk, dv, output;
  View key_bias_view, value_bias_view;
  Weights key_bias, value_bias;  // gradients of the attention biases
  std::byte* cache = nullptr;
  std::byte* work = nullptr;     // aligned to kAlignment
  void* given_work = nullptr;    // the caller's, where that is used
  View cache_view, work_view;    // all of their bytes

  void clear_sums() const {  // those over no samples
    for (const Delta* delta : {&dq, &dk, &dv, &output}) {
      clear_sum(delta->w_view);
      clear_sum(delta->bias_view);
    }
    clear_sum(key_bias_view);
    clear_sum(value_bias_view);
  }
  bool wants_core() const { return dq.any() || dk.any() || dv.any() || key_bias.data || value_bias.data; }
};

struct Places;  // attention.cpp
struct Words;

// What begins a cache.
struct CacheHeader {
  uint64_t mark;      // kCacheMark
  uint64_t batch;
  uint64_t shape[5];  // T, S + extra, H, d_key, d_value
  uint64_t start;     // of the dropout
};
inline constexpr uint64_t kCacheMark = 0x6f626e6174746e31;

class Attention final : public Filter {
 public:
  explicit Attention(const Options& options);
  ~Attention() override;

  int prepare(const BNNSLayerParametersMultiheadAttention& parameters);
  int set_causal(int on);
  size_t work_bytes(size_t batch) const override;
  void describe(Description* description) const override;

  // Arguments as in the interface.
  struct Forward {
    size_t batch;
    const void* q;
    size_t q_stride;
    const void* k;
    size_t k_stride;
    const BNNSNDArrayDescriptor* hidden;
    size_t hidden_stride;
    const void* v;
    size_t v_stride;
    void* y;
    size_t y_stride;
    const BNNSNDArrayDescriptor* added;
    size_t* cache_size;
    void* cache;
    size_t* work_size;
    void* work;
  };
  int forward(const Forward& arguments);

  struct Backward {
    size_t batch;
    const void* q;
    size_t q_stride;
    BNNSMHAProjectionParameters* dq;
    const void* k;
    size_t k_stride;
    const BNNSNDArrayDescriptor* hidden;
    size_t hidden_stride;
    BNNSMHAProjectionParameters* dk;
    const void* v;
    size_t v_stride;
    BNNSMHAProjectionParameters* dv;
    const BNNSNDArrayDescriptor* added;
    BNNSNDArrayDescriptor* key_bias;
    BNNSNDArrayDescriptor* value_bias;
    BNNSMHAProjectionParameters* output;
    size_t cache_size;
    void* cache;
    size_t* work_size;
    void* work;
  };
  int backward(const Backward& arguments);

 private:
  struct Saved;
  struct Plan;

  int prepare_projection(const BNNSMHAProjectionParameters& p, const Words& words, size_t rows, Projection* to);
  int prepare_output(const BNNSMHAProjectionParameters& p);
  int prepare_attention_bias(const BNNSNDArrayDescriptor& d, const char* word, size_t width, View* view,
                             Weights* weights);
  int check_types() const;
  int hold();

  int check_inputs(size_t batch, const void* q, size_t q_stride, const void* k, size_t k_stride, const void* v,
                   size_t v_stride, bool needs_q, bool needs_k, bool needs_v, Job* job) const;
  int check_hidden(const BNNSNDArrayDescriptor* hidden, size_t stride, Job* job) const;
  int check_added(const BNNSNDArrayDescriptor* added, Job* job) const;
  int check_cache(size_t batch, size_t size, const void* cache) const;
  int check_cache_for_backward(const Backward& a, Job* job) const;
  int check_delta(BNNSMHAProjectionParameters* delta, const Projection& like, const Words& words, Job* job, Delta* to);
  int check_deltas(const Backward& a, Job* job);
  int check_aliases(const Job& job) const;
  void add_reads(const Job& job, bool is_forward, Places* reads) const;
  void add_writes(const Job& job, bool is_forward, Places* writes) const;
  int check_places(const Job& job, bool is_forward) const;
  int find_work(size_t bytes, const size_t* given_size, void* given, Job* job) const;

  bool has_dropout() const { return threshold_ != 0; }
  size_t kept_each() const { return (s_ + extra()) * score_pitch(t_); }  // floats of a head
  size_t extra() const { return (has_attention_bias_ ? 1 : 0) + (adds_zero_ ? 1 : 0); }
  size_t key_columns() const { return heads_ * key_width_; }
  size_t value_columns() const { return heads_ * value_width_; }
  size_t threads() const;
  CacheHeader header_of(size_t batch, uint64_t start) const {
    return {kCacheMark, batch, {t_, s_ + extra(), heads_, key_width_, value_width_}, start};
  }

  // attention_run.cpp
  size_t cache_bytes(size_t batch) const;  // SIZE_MAX: more than can be addressed, like the next
  size_t plan_bytes(size_t batch, bool is_backward, bool has_cache) const;
  void place_saved(size_t batch, bool keeps_scores, Workspace* workspace, Saved* saved) const;
  void place(size_t batch, bool is_backward, bool has_cache, Workspace* workspace, Plan* plan) const;
  size_t product_bytes(size_t batch, bool is_backward) const;
  size_t count_product_bytes(size_t batch, bool is_backward) const;
  Plan begin(const Job& job, bool is_backward) const;
  void prepare_weights(Plan* plan) const;
  void run_forward(const Job& job) const;
  void run_backward(const Job& job) const;
  void project(const Job& job, const Plan& plan) const;
  void attend(const Job& job, const Plan& plan) const;
  void attend_backward(const Job& job, const Plan& plan) const;
  void multiply_rows(const Job& job, const Plan& plan, const float* a, size_t k, const gemm::Operand& b,
                     const float* bias, const Batch& to, size_t rows, size_t n, bool accumulate) const;
  void multiply_outer(const Job& job, const Plan& plan, const Batch& left, const Batch& right, size_t rows,
                      const Weights& to) const;
  void sum_rows(const Job& job, const Plan& plan, const Batch& from, size_t rows, const Weights& to) const;
  void give(const Job& job, const Plan& plan, const Delta& delta, const Projection& projection, const Weights& weights,
            const Batch& x, const float* dx, bool is_repeated) const;
  void sum_attention_bias(const Job& job, const float* partial, size_t width, const Weights& to) const;
  Head head_of(const Job& job, const Plan& plan, size_t b, size_t h) const;
  Coming coming_of(const Job& job, const Plan& plan, size_t i) const;

  Projection q_, k_, v_, o_;
  View key_bias_view_, value_bias_view_;
  Weights key_bias_, value_bias_;
  size_t t_ = 0, s_ = 0, heads_ = 0, key_width_ = 0, value_width_ = 0;
  bool adds_zero_ = false, has_attention_bias_ = false;
  std::atomic<bool> causal_ = false;
  uint32_t threshold_ = 0;   // 0: no dropout
  float factor_ = 1.0f;
  RandomStream stream_;
  mutable std::atomic<uint64_t> position_ = 0;
  void* held_ = nullptr;     // copies of weights and biases
  Blocks forward_blocks_, backward_blocks_;  // columns 0: the obvious loops
  bool keeps_scores_ = false;                // for a backward pass
  mutable std::atomic<uint64_t> counted_[2] = {};  // batch size << 32 | work of its products, in units of kAlignment
};

}  // namespace obn::attention
