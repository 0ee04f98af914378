// The images that the double loads, as a driver tells them apart: PTX by its text, machine code (an ELF file) by the
// GPU it is for.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>

namespace modules {

enum Result { OK = 0, INVALID_IMAGE = 200, NO_BINARY_FOR_GPU = 209, INVALID_PTX = 218 };

struct Module {
    std::set<std::string> kernels;
};

// Loaded and not unloaded since.
inline std::set<Module*>& all() {
    static auto& a = *new std::set<Module*>;
    return a;
}

template <class T> T at(const char* image, uint64_t offset) {
    T value;
    memcpy(&value, image + offset, sizeof value);
    return value;
}

// Machine code for 9.0 says 90, in one of two places.
inline unsigned capability_of(const char* image) {
    uint32_t flags = at<uint32_t>(image, 48);
    return image[8] >= 8 ? flags >> 8 & 0xff : flags & 0xff;
}

inline int load_machine_code(const char* image, unsigned gpu, Module& module) {
    unsigned of = capability_of(image);
    if (of / 10 != gpu / 10 || of % 10 > gpu % 10) return NO_BINARY_FOR_GPU;
    uint64_t sections = at<uint64_t>(image, 40);
    uint16_t size = at<uint16_t>(image, 58), count = at<uint16_t>(image, 60), names_at = at<uint16_t>(image, 62);
    const char* names = image + at<uint64_t>(image, sections + (uint64_t)size * names_at + 24);
    for (uint16_t i = 0; i < count; i++) {
        std::string name = names + at<uint32_t>(image, sections + (uint64_t)size * i);
        if (name.rfind(".text.", 0) == 0) module.kernels.insert(name.substr(6));
    }
    return module.kernels.empty() ? INVALID_IMAGE : OK;
}

inline int load_text(const std::string& text, unsigned gpu, Module& module) {
    const std::string target = ".target sm_";
    size_t said = text.find(target);
    if (said == std::string::npos) return INVALID_PTX;
    if (std::stoul(text.substr(said + target.size(), 3)) > gpu) return NO_BINARY_FOR_GPU;
    const std::string entry = ".entry ";
    for (size_t from = text.find(entry); from != std::string::npos; from = text.find(entry, from)) {
        from += entry.size();
        module.kernels.insert(text.substr(from, text.find('(', from) - from));
    }
    return OK;
}

// `gpu`: the device's compute capability, 90 for 9.0.
inline int load(const char* image, unsigned gpu, Module** loaded) {
    auto module = std::make_unique<Module>();
    int code = memcmp(image, "\177ELF", 4) == 0 ? load_machine_code(image, gpu, *module) : load_text(image, gpu, *module);
    if (code == OK) all().insert(*loaded = module.release());
    return code;
}

} // namespace modules
