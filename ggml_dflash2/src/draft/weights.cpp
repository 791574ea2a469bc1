#include "draft/weights.h"

#include <set>
#include <utility>

#include "draft/buffer-type.h"
#include "draft/schema.h"
#include "ggml.h"
#include "ggml_dflash2/error.h"

namespace dflash2 {

namespace {

enum class kind {
    matrix,  // multiplied
    table,   // its rows are gathered
    vector,  // norms and conv base kernels, always F32
};

std::string shape_string(const std::vector<int64_t> & ne) {
    std::string s  = "[";
    size_t      nd = ne.size();
    while (nd > 1 && ne[nd - 1] == 1) {
        nd--;
    }
    for (size_t i = 0; i < nd; ++i) {
        s += (i ? ", " : "") + std::to_string(ne[i]);
    }
    return s + "]";
}

weight_group make_group(const gguf_file & file, ggml_backend_buffer_type_t buft) {
    weight_group g;
    g.buft = buft;
    g.ctx.reset(ggml_init({(file.tensors().size() + 1) * ggml_tensor_overhead(), nullptr, /*no_alloc =*/true}));
    if (!g.ctx) {
        throw error(errc::memory, file.path() + ": cannot allocate tensor headers");
    }
    return g;
}

// Creates the ggml tensors of the file's tensors, one by one and checked.
class binder {
  public:
    binder(const gguf_file & file, draft_weights & w, ggml_backend_dev_t device)
        : file_(file), w_(w), device_(device) {}

    ggml_tensor * bind(const std::string & name, std::vector<int64_t> ne, kind k, bool required = true) {
        const gguf_tensor * t = file_.find_tensor(name);
        if (!t) {
            if (required) {
                file_.fail("tensor " + name + " is missing; convert the drafter again");
            }
            return nullptr;
        }
        ne.resize(GGML_MAX_DIMS, 1);
        if (t->ne != ne) {
            file_.fail("tensor " + name + ": expected shape " + shape_string(ne) + ", got " + shape_string(t->ne));
        }
        if (k == kind::vector && t->type != GGML_TYPE_F32) {
            file_.fail("tensor " + name + ": expected type f32, got " + ggml_type_name(t->type));
        }
        // What has no to_float is an integer, or a type of activations such as q8_1, which ggml aborts on.
        if (k != kind::vector && t->type != GGML_TYPE_F32 && !ggml_get_type_traits(t->type)->to_float) {
            file_.fail("tensor " + name + ": expected a float or quantized type, got " + ggml_type_name(t->type));
        }
        return create(name, t->type, ne, k);
    }

    ggml_tensor * layer(int32_t il, const char * name, std::vector<int64_t> ne, kind k) {
        return bind("blk." + std::to_string(il) + "." + name, std::move(ne), k);
    }

    ggml_tensor * create(const std::string & name, ggml_type type, const std::vector<int64_t> & ne, kind k) {
        const weight_group & g = name == schema::TOKEN_EMBD ? w_.embedding : group(type, ne, k);
        ggml_tensor *        t = ggml_new_tensor(g.ctx.get(), type, GGML_MAX_DIMS, ne.data());
        ggml_set_name(t, name.c_str());
        used_.insert(name);
        return t;
    }

    void reject_unknown() const {
        for (const gguf_tensor & t : file_.tensors()) {
            if (!used_.count(t.name)) {
                file_.fail("tensor " + t.name + " is not part of a DFlash 2 drafter; ignoring it could change drafts");
            }
        }
    }

  private:
    const weight_group & group(ggml_type type, const std::vector<int64_t> & ne, kind k) {
        ggml_backend_buffer_type_t buft =
            k == kind::matrix ? matrix_buffer_type(device_, type, ne[0], ne[1]) : ggml_backend_dev_buffer_type(device_);
        for (const weight_group & g : w_.groups) {
            if (g.buft == buft) {
                return g;
            }
        }
        w_.groups.push_back(make_group(file_, buft));
        return w_.groups.back();
    }

    const gguf_file &     file_;
    draft_weights &       w_;
    ggml_backend_dev_t    device_;
    std::set<std::string> used_;
};

int64_t rows_of(const gguf_file & file, const char * name) {
    const gguf_tensor * t = file.find_tensor(name);
    if (!t) {
        file.fail(std::string("tensor ") + name + " is missing; convert the drafter again");
    }
    if (t->ne[1] > INT32_MAX) {
        file.fail(std::string("tensor ") + name + ": too many rows");
    }
    return t->ne[1];
}

layer_weights bind_layer(binder & b, const draft_hparams & hp, int32_t il) {
    const int64_t n_embd   = hp.n_embd;
    const int64_t n_q      = (int64_t) hp.head_dim * hp.n_head;
    const int64_t n_kv     = (int64_t) hp.head_dim * hp.n_head_kv;
    const int64_t n_coeff  = (int64_t) 2 * hp.conv_kernel_size * (hp.n_embd / hp.conv_group_size);
    const int64_t n_kernel = hp.conv_kernel_size;

    layer_weights l;
    l.attn_norm      = b.layer(il, schema::ATTN_NORM, {n_embd}, kind::vector);
    l.wq             = b.layer(il, schema::ATTN_Q, {n_embd, n_q}, kind::matrix);
    l.wk             = b.layer(il, schema::ATTN_K, {n_embd, n_kv}, kind::matrix);
    l.wv             = b.layer(il, schema::ATTN_V, {n_embd, n_kv}, kind::matrix);
    l.wo             = b.layer(il, schema::ATTN_OUT, {n_q, n_embd}, kind::matrix);
    l.q_norm         = b.layer(il, schema::ATTN_Q_NORM, {hp.head_dim}, kind::vector);
    l.k_norm         = b.layer(il, schema::ATTN_K_NORM, {hp.head_dim}, kind::vector);
    l.attn_conv.base = b.layer(il, schema::ATTN_CONV_BASE, {n_embd, n_kernel, 2}, kind::vector);
    l.attn_conv.proj = b.layer(il, schema::ATTN_CONV_PROJ, {n_embd, n_coeff}, kind::matrix);
    l.ffn_norm       = b.layer(il, schema::FFN_NORM, {n_embd}, kind::vector);
    l.gate           = b.layer(il, schema::FFN_GATE, {n_embd, hp.n_ff}, kind::matrix);
    l.up             = b.layer(il, schema::FFN_UP, {n_embd, hp.n_ff}, kind::matrix);
    l.down           = b.layer(il, schema::FFN_DOWN, {hp.n_ff, n_embd}, kind::matrix);
    l.ffn_conv.base  = b.layer(il, schema::FFN_CONV_BASE, {n_embd, n_kernel, 2}, kind::vector);
    l.ffn_conv.proj  = b.layer(il, schema::FFN_CONV_PROJ, {n_embd, n_coeff}, kind::matrix);
    return l;
}

// d2t is stored as int64; the graph gathers ids as int32.
std::vector<int32_t> read_d2t(const gguf_file & file, const gguf_tensor & t, int64_t n_vocab) {
    if (t.type != GGML_TYPE_I64 || t.ne[1] != 1 || t.ne[0] < 1 || t.ne[0] > n_vocab) {
        file.fail("tensor d2t: expected up to " + std::to_string(n_vocab) + " int64 ids, got " + shape_string(t.ne) +
                  " of " + ggml_type_name(t.type));
    }
    std::vector<int64_t> ids(t.ne[0]);
    file.read(t, ids.data());
    std::vector<int32_t> out;
    std::vector<bool>    seen(n_vocab, false);
    for (const int64_t id : ids) {
        if (id < 0 || id >= n_vocab || seen[id]) {
            file.fail("tensor d2t: id " + std::to_string(id) + " is out of range or listed twice");
        }
        seen[id] = true;
        out.push_back((int32_t) id);
    }
    return out;
}

void allocate(const gguf_file & file, weight_group & g, bool plan_only) {
    g.buffer = tensor_buffer(g.ctx.get(), g.buft, plan_only, file.path());
    ggml_backend_buffer_set_usage(g.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
}

void load(const gguf_file & file, ggml_context * ctx, const ggml_tensor * d2t, const std::vector<int32_t> & d2t_ids) {
    std::vector<uint8_t> bytes;
    for (ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
        if (t == d2t) {
            ggml_backend_tensor_set(t, d2t_ids.data(), 0, ggml_nbytes(t));
            continue;
        }
        const gguf_tensor & source = *file.find_tensor(t->name);
        bytes.resize(source.size);
        file.read(source, bytes.data());
        ggml_backend_tensor_set(t, bytes.data(), 0, bytes.size());
    }
}

}  // namespace

draft_weights load_weights(const gguf_file & file, draft_hparams & hp, ggml_backend_dev_t device, bool plan_only) {
    draft_weights w;
    w.embedding =
        make_group(file, ggml_backend_dev_buffer_type(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)));

    hp.n_vocab = (int32_t) rows_of(file, schema::SEL_PRED);
    if (hp.mask_token_id >= hp.n_vocab) {
        file.fail("mask token id " + std::to_string(hp.mask_token_id) + " is outside the vocabulary of " +
                  std::to_string(hp.n_vocab));
    }

    binder        b(file, w, device);
    const int64_t n_embd = hp.n_embd;
    w.fc                 = b.bind(schema::FC, {n_embd * hp.n_taps(), n_embd}, kind::matrix);
    w.hidden_norm        = b.bind(schema::HIDDEN_NORM, {n_embd}, kind::vector);
    w.output_norm        = b.bind(schema::OUTPUT_NORM, {n_embd}, kind::vector);
    w.sel_pred           = b.bind(schema::SEL_PRED, {hp.selector_rank, hp.n_vocab}, kind::table);
    w.sel_succ           = b.bind(schema::SEL_SUCC, {hp.selector_rank, hp.n_vocab}, kind::table);
    w.sel_hidden         = b.bind(schema::SEL_HIDDEN, {n_embd, hp.selector_rank}, kind::matrix);
    w.tok_embd           = b.bind(schema::TOKEN_EMBD, {n_embd, hp.n_vocab}, kind::table, /*required =*/false);

    std::vector<int32_t> d2t;
    if (const gguf_tensor * t = file.find_tensor(schema::D2T)) {
        d2t   = read_d2t(file, *t, hp.n_vocab);
        w.d2t = b.create(schema::D2T, GGML_TYPE_I32, {1, (int64_t) d2t.size(), 1, 1}, kind::table);
    }
    const int64_t n_head_out = d2t.empty() ? hp.n_vocab : (int64_t) d2t.size();
    w.output                 = b.bind(schema::OUTPUT, {n_embd, n_head_out}, kind::matrix, /*required =*/!d2t.empty());
    if (hp.selector_top_k > n_head_out) {
        file.fail("selector_top_k " + std::to_string(hp.selector_top_k) + " is larger than the output head");
    }

    for (int32_t il = 0; il < hp.n_layer; ++il) {
        w.layers.push_back(bind_layer(b, hp, il));
    }
    b.reject_unknown();

    std::vector<weight_group *> groups;
    for (weight_group & g : w.groups) {
        groups.push_back(&g);
    }
    if (w.tok_embd) {
        groups.push_back(&w.embedding);
    }
    for (weight_group * g : groups) {
        allocate(file, *g, plan_only);
        if (!plan_only) {
            load(file, g->ctx.get(), w.d2t, d2t);
        }
    }
    return w;
}

size_t draft_weights::size_bytes() const {
    size_t n = 0;
    for (const weight_group & g : groups) {
        n += g.buffer.size_bytes();
    }
    return n;
}

}  // namespace dflash2
