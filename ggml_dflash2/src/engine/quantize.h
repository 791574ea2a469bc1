// Quantization for the converter: ggml's own quantizers and llama-quantize's own choice of types.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dflash2 {

// Bytes of one row of n_cols values. type: a ggml type name in either case ("f16", "q8_0", "q4_K").
// Throws errc::argument: unknown type, a type that cannot be written, n_cols not a multiple of its block size.
size_t quantized_row_size(const std::string & type, int64_t n_cols);

// data: [n_cols, n_rows] F32. out: n_rows * quantized_row_size(type, n_cols) bytes. n_threads: 0: all cores.
// imatrix: [n_cols], the mean square of each column's input, 0 to 1e20; null: none.
// Throws errc::argument as above, for types that need an importance matrix when there is none, for impossible ones,
// and for values that the type cannot hold (the message names the row).
void quantize(const float * data, int64_t n_rows, int64_t n_cols, const std::string & type, int32_t n_threads,
              uint8_t * out, const float * imatrix = nullptr);

struct tensor_shape {
    std::string          name;
    std::vector<int64_t> ne;  // ggml order, 1 to 4 dimensions
};

struct quantize_hparams {
    int32_t n_embd    = 0;
    int32_t n_ff      = 0;
    int32_t n_layer   = 0;
    int32_t n_head    = 0;
    int32_t n_head_kv = 0;
    int32_t head_dim  = 0;
};

// What llama-quantize does with the F32 tensors of an arch `dflash` file.
// ftype: its name of a file type in either case ("Q4_K_M", "Q8_0", "F16").
// tensors: all tensors of the file, in any order: the choice for one depends on which others there are.
// has_imatrix: an importance matrix is given, whatever it holds.
// Returns one ggml type name per tensor; empty: the tensor keeps its type. Throws errc::argument.
std::vector<std::string> quantize_types(const std::string & ftype, const std::vector<tensor_shape> & tensors,
                                        const quantize_hparams & hparams, bool has_imatrix = false);

}  // namespace dflash2
