// The ground of the fuzzer: bytes become decisions, descriptors become memory that is exactly as long as they say, and
// every call of the library is judged: what it returned, what it said, what it wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "openbnns/bnns.h"
#include "openbnns/openbnns.h"

namespace fuzz {

// The input, one decision after the other. Behind its end there are zeros, and zero is the ordinary choice everywhere:
// a short input is a plain case.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}
  uint8_t byte() { return next_ < end_ ? *next_++ : 0; }
  size_t pick(size_t n) { return byte() % n; }
  bool one_in(size_t n) { return pick(n) == n - 1; }
  uint64_t number();  // any 64 bits

 private:
  const uint8_t* next_;
  const uint8_t* end_;
};

// What a descriptor and a batch say about memory, worked out here once more, apart from the library.
struct Where {
  bool sound = false;  // false: no call may take it
  size_t rank = 0, extent[BNNS_MAX_TENSOR_DIMENSION + 1] = {}, stride[BNNS_MAX_TENSOR_DIMENSION + 1] = {};
  size_t bits = 0;     // of a value
  size_t bytes = 0;    // from the first value to the last
  size_t count = 0;    // values
};
Where locate(const BNNSNDArrayDescriptor& d, size_t batch = 1, size_t step = 0);

// Values that a call may write.
struct Written {
  const void* data;
  Where where;
};
Written values_of(const BNNSNDArrayDescriptor& d, const void* data, size_t batch = 1, size_t step = 0);
Written values_of(const BNNSNDArrayDescriptor* d, size_t batch = 1, size_t step = 0);  // d may be NULL
Written bytes_at(const void* data, size_t bytes);

// One run of an input: its memory, its calls and what they left.
class World {
 public:
  World(const uint8_t* data, size_t size, size_t threads, bool speaks);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // ---- decisions ----
  Bytes in;
  bool odd();                           // whether to do something that a sane caller does not
  bool flip() { return in.byte() & 1; }
  size_t extent();                      // small, seldom absurd
  size_t few(size_t most);              // 1 to most, seldom absurd
  size_t batch();                       // 1 mostly
  size_t step(const BNNSNDArrayDescriptor& d);  // a batch stride: packed, with a gap, or absurd
  float real(float usual);
  float unit(float usual);              // 0 to 1 mostly
  BNNSDataType float_type();            // float32 mostly
  BNNSDataType any_type();
  BNNSActivation activation(size_t channels);  // identity mostly
  const BNNSFilterParameters* options();       // NULL mostly; or flags, threads, an allocator that may run dry
  bool uses_client_pointer() const { return options_.flags & BNNSFlagsUseClientPtr; }
  template <class T>
  T enumeration(size_t count, size_t first = 0) {  // one of `count` values, seldom none of them
    if (odd()) return static_cast<T>(in.number());
    return static_cast<T>(first + in.pick(count));
  }

  // ---- arrays ----
  // Sizes in the order of size[]; strides are chosen here.
  BNNSNDArrayDescriptor describe(BNNSDataLayout layout, std::initializer_list<size_t> sizes, BNNSDataType type);
  void restride(BNNSNDArrayDescriptor* d);
  // Memory for it, exactly as long as it says and filled; NULL where it would be too long; seldom NULL, not aligned, or
  // on top of another array. `twin`: other memory that it may share, as a layer that works in place does.
  void* place(const BNNSNDArrayDescriptor& d, size_t batch = 1, size_t step = 0, void* twin = nullptr);
  BNNSNDArrayDescriptor with_data(BNNSNDArrayDescriptor d);  // a parameter: place() at data, and a table
  BNNSNDArrayDescriptor optional(BNNSNDArrayDescriptor d);   // the same, or no data
  // The gradient of an array: its sizes, strides of its own, memory for a batch; seldom of other sizes.
  BNNSNDArrayDescriptor gradient(BNNSNDArrayDescriptor d, size_t batch = 1, size_t step = 0);
  BNNSNDArrayDescriptor* maybe(BNNSNDArrayDescriptor* d) { return in.one_in(4) ? nullptr : d; }
  void* raw(size_t bytes, BNNSDataType type);     // filled like values of that type
  void* scratch(size_t bytes);                    // what is in it afterwards is nobody's concern
  bool share_a_block(const void* a, const void* b) { return block_of(a) && block_of(a) == block_of(b); }
  void forget(const void* data);                  // frees the block that it lies in

  // False when the call would take too long here.
  bool affords(size_t work) const { return work <= (size_t{1} << 22); }

  // ---- calls ----
  // Runs a call that returns 0 or -1 and may write only these values.
  template <class Call>
  int call(const char* name, std::initializer_list<Written> written, Call&& call) {
    return call_vector(name, std::vector<Written>(written), call);
  }
  template <class Call>
  int call_vector(const char* name, const std::vector<Written>& written, Call&& call) {
    before(name);
    int status = call();
    if (status != 0 && status != -1) broken("returned something else than 0 and -1");
    after(status == 0, written);
    return status;
  }
  // Calls that answer with a handle or a number; `failure` is what says that they failed.
  template <class Call, class T>
  T ask(const char* name, T failure, Call&& call) {
    before(name);
    T answer = call();
    after(answer != failure, {});
    return answer;
  }
  template <class Call>
  BNNSFilter create(const char* name, Call&& call) {
    BNNSFilter filter = ask(name, BNNSFilter(nullptr), call);
    if (filter) filters_.push_back(filter);
    return filter;
  }
  // A call that has to fail, as its handle is none.
  template <class Call>
  void refuse(const char* name, Call&& call) {
    if (this->call(name, {}, call) == 0) broken("was not refused");
  }
  BNNSFilter no_filter();                            // NULL, destroyed, stray, or of a random generator
  void question(BNNSFilter filter);                  // getters, setters, size queries
  void destroy(BNNSFilter filter);

  [[noreturn]] void broken(const char* what);        // an oracle failed
  [[gnu::format(printf, 2, 3)]] void say(const char* format, ...);
  void say(const char* name, const BNNSNDArrayDescriptor& d);
  void finish();                                     // destroys what is left and looks at the allocator

  struct Entry {
    std::string name;
    bool succeeded;
    uint64_t memory;  // hash of all blocks
  };
  const std::vector<Entry>& transcript() const { return transcript_; }

 private:
  struct Block {
    char* data;
    size_t bytes;
    bool is_scratch;
    BNNSDataType type;
    std::string before;
  };
  Block* block_of(const void* data);
  void before(const char* name);
  void after(bool succeeded, const std::vector<Written>& written);
  char* add(size_t bytes, bool is_scratch, BNNSDataType type);
  void fill(char* data, size_t bytes, BNNSDataType type);

  std::vector<Block> blocks_;
  std::vector<BNNSFilter> filters_;
  std::vector<Entry> transcript_;
  BNNSFilterParameters options_ = {};
  const char* name_ = "";
  size_t threads_;
  size_t oddity_;
  bool speaks_;
};

// One of these per family: they make filters and call them.
void activations(World& w);
void arithmetics(World& w);
void attentions(World& w);
void clips(World& w);
void convolutions(World& w);
void fully_connected(World& w);
void sparse(World& w);
void fused(World& w);
void legacies(World& w);
void losses(World& w);
void matmuls(World& w);
void contractions(World& w);
void normalizations(World& w);
void optimizers(World& w);
void poolings(World& w);
void quantizations(World& w);
void randoms(World& w);
void small_calls(World& w);

// Parameters of the layers that fused ones are made of.
struct ConvolutionCase {
  BNNSLayerParametersConvolution p;
  size_t work;
};
ConvolutionCase convolution_case(World& w, bool transposed, BNNSDataType type);
BNNSLayerParametersFullyConnected fully_connected_case(World& w, BNNSDataType type);
BNNSLayerParametersNormalization normalization_case(World& w, BNNSFilterType kind, const BNNSNDArrayDescriptor& x);
BNNSLayerParametersPooling pooling_case(World& w, const BNNSNDArrayDescriptor& x);

}  // namespace fuzz
