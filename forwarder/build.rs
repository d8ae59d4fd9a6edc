//! Generates the Forwarder service and the health messages from `proto/`; the Plan's messages
//! come from the crate `plan`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = std::path::PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../proto");
    let file = |name: &str| root.join("guideway/forwarder/v1").join(name);
    let files = [file("forwarder.proto"), file("health.proto")];
    let messages = protox::compile(files, [&root])?;
    // Not the directory: generated Go is written beside them.
    for file in &messages.file {
        println!("cargo:rerun-if-changed={}", root.join(file.name()).display());
    }
    tonic_prost_build::configure()
        // Offline answers are the same as those over the socket, as JSON.
        .message_attribute("guideway.forwarder.v1.ExplainResponse", "#[derive(serde::Serialize)]")
        .message_attribute("guideway.forwarder.v1.TrackedFlow", "#[derive(serde::Serialize)]")
        .message_attribute("guideway.forwarder.v1.CachedFlow", "#[derive(serde::Serialize)]")
        .message_attribute(
            "guideway.forwarder.v1.ExplainedConnectionId",
            "#[derive(serde::Serialize)]",
        )
        .message_attribute(
            "guideway.forwarder.v1.ExplainedMultipath",
            "#[derive(serde::Serialize)]",
        )
        .message_attribute("guideway.forwarder.v1.NextHop", "#[derive(serde::Serialize)]")
        .message_attribute("guideway.forwarder.v1.Drop", "#[derive(serde::Serialize)]")
        .extern_path(".guideway.plan.v1", "::plan::proto")
        .compile_fds(messages)?;
    Ok(())
}
