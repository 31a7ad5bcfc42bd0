//! Modules, functions and libraries (CUDA Driver API, "Module Management", "Library Management").

use std::collections::HashMap;
use std::sync::Arc;

use super::abi::{Handle, HostIn};
use super::state::{Driver, Function, Kernel, Library, LoadedModule};
use crate::fatbin;
use crate::fault::{Code, Fault, Result, shown};

impl Driver {
    /// The PTX in what a program passes as an image, whose size it does not pass.
    pub fn ptx_of_image(&self, image: HostIn) -> Result<String> {
        let magic: [u8; 4] = image.bytes(4, "the image")?.try_into().expect("4 bytes");
        if u32::from_le_bytes(magic) == fatbin::WRAPPER_MAGIC {
            let wrapper = image.bytes(24, "the fatbin's wrapper")?;
            let address = u64::from_le_bytes(wrapper[8..16].try_into().expect("8 bytes"));
            return self.ptx_of_image(super::abi::host_in(address));
        }
        let capability = self.device.card.compute_capability;
        match fatbin::kind(&magic) {
            fatbin::Image::Fatbin => {
                let header = image.bytes(fatbin::HEADER_BYTES, "the fatbin's header")?;
                fatbin::ptx(image.bytes(fatbin::size(header)?, "the fatbin")?, capability)
            }
            fatbin::Image::Elf => Err(fatbin::elf_alone(image.bytes(64, "the cubin's header")?)),
            fatbin::Image::Text => fatbin::text(image.c_string("the image")?),
        }
    }

    /// The PTX in a file.
    pub fn ptx_of_file(&self, path: &str) -> Result<String> {
        let bytes = std::fs::read(path).map_err(|e| Fault::new(Code::FileNotFound, format!("{}: {e}", shown(path))))?;
        fatbin::ptx_of_file(&bytes, self.device.card.compute_capability)
            .map_err(|fault| Fault::new(fault.code, format!("{}: {}", shown(path), fault.message)))
    }

    pub fn module_load(&mut self, ptx: &str) -> Result<Handle> {
        let context = self.current()?;
        let owner = self.owner()?;
        let module = self.device.load(owner, ptx)?;
        Ok(self.modules.insert(LoadedModule { context, module, functions: HashMap::new() }))
    }

    pub fn module_unload(&mut self, handle: Handle) -> Result<()> {
        let module = self.modules.remove(handle)?;
        for function in module.functions.values() {
            self.functions.remove(*function)?;
        }
        self.device.unload(&module.module);
        Ok(())
    }

    pub fn module_function(&mut self, handle: Handle, name: &str) -> Result<Handle> {
        let module = self.modules.get(handle)?;
        if let Some(&function) = module.functions.get(name) {
            return Ok(function);
        }
        if let Some(fault) = module.module.refused.get(name) {
            return Err(fault.clone());
        }
        let Some(program) = module.module.kernels.iter().find(|kernel| kernel.name == name) else {
            let names: Vec<_> = module.module.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
            return Err(not_found("kernel", name, &names));
        };
        let function = Function {
            context: module.context,
            module: handle,
            program: Arc::clone(program),
            dynamic_shared_limit: default_dynamic_limit(&self.device.card, program.static_shared),
            carveout: -1,
        };
        let function = self.functions.insert(function);
        self.modules.get_mut(handle)?.functions.insert(name.to_string(), function);
        Ok(function)
    }

    /// A variable's address and bytes.
    pub fn module_global(&self, handle: Handle, name: &str) -> Result<(u64, u64)> {
        let module = &self.modules.get(handle)?.module;
        module.variables.get(name).copied().ok_or_else(|| {
            let names: Vec<_> = module.variables.keys().map(String::as_str).collect();
            not_found("variable", name, &names)
        })
    }

    pub fn library_load(&mut self, ptx: String) -> Result<Handle> {
        // Loaded once now where a context allows, so that errors come from this call.
        let loaded = if super::context::top() == 0 { None } else { Some(self.module_load(&ptx)?) };
        let modules = loaded.into_iter().map(|module| (super::context::top(), module)).collect();
        Ok(self.libraries.insert(Library { ptx, modules, kernels: HashMap::new() }))
    }

    pub fn library_unload(&mut self, handle: Handle) -> Result<()> {
        let library = self.libraries.remove(handle)?;
        for kernel in library.kernels.values() {
            self.kernels.remove(*kernel)?;
        }
        for module in library.modules.values() {
            // The context may have taken it along.
            if self.modules.contains(*module) {
                self.module_unload(*module)?;
            }
        }
        Ok(())
    }

    /// The library's module in the current context.
    pub fn library_module(&mut self, handle: Handle) -> Result<Handle> {
        let context = self.current()?;
        let library = self.libraries.get(handle)?;
        if let Some(&module) = library.modules.get(&context).filter(|&&module| self.modules.contains(module)) {
            return Ok(module);
        }
        let ptx = library.ptx.clone();
        let module = self.module_load(&ptx)?;
        self.libraries.get_mut(handle)?.modules.insert(context, module);
        Ok(module)
    }

    pub fn library_kernel(&mut self, handle: Handle, name: &str) -> Result<Handle> {
        if let Some(&kernel) = self.libraries.get(handle)?.kernels.get(name) {
            return Ok(kernel);
        }
        let module = self.library_module(handle)?;
        self.module_function(module, name)?;
        let kernel = self.kernels.insert(Kernel { library: handle, name: name.to_string() });
        self.libraries.get_mut(handle)?.kernels.insert(name.to_string(), kernel);
        Ok(kernel)
    }

    /// The function that a handle means: its own, or that of a kernel in the current context.
    pub fn function(&mut self, handle: Handle) -> Result<Handle> {
        if !self.kernels.contains(handle) {
            self.functions.get(handle)?;
            return Ok(handle);
        }
        let (library, name) = (self.kernels.get(handle)?.library, self.kernels.get(handle)?.name.clone());
        let module = self.library_module(library)?;
        self.module_function(module, &name)
    }
}

/// Dynamic shared memory that needs no opt-in.
pub fn default_dynamic_limit(card: &crate::card::Card, static_shared: u32) -> u32 {
    card.shared_per_block.saturating_sub(static_shared)
}

/// Names the nearest of the names that exist.
fn not_found(what: &str, name: &str, names: &[&str]) -> Fault {
    let name = shown(name);
    let mut near: Vec<_> =
        names.iter().map(|other| shown(other)).map(|other| (distance(&name, &other), other)).collect();
    near.sort();
    let near: Vec<_> = near.iter().take(3).map(|entry| entry.1.as_str()).collect();
    let message = if near.is_empty() {
        format!("no {what} \"{name}\": the module has none")
    } else {
        format!("no {what} \"{name}\": the module has {} ({} in all)", near.join(", "), names.len())
    };
    Fault::new(Code::NotFound, message)
}

/// Levenshtein's edit distance; 0 for a name that holds the other, as a mangled one does.
fn distance(a: &str, b: &str) -> usize {
    if !a.is_empty() && b.contains(a) {
        return 0;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_come_first() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("saxpy", "_Z5saxpyifPfS_"), 0);
        let message = not_found("kernel", "saxpi", &["zero", "gemm_nt", "saxpy", "softmax"]).message;
        assert!(message.starts_with("no kernel \"saxpi\": the module has saxpy, "), "{message}");
        assert!(message.ends_with("(4 in all)"));
        assert!(not_found("kernel", "x", &[]).message.ends_with("has none"));
    }
}
