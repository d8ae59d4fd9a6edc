// Command validateproto writes the descriptors of buf/validate/validate.proto and of its
// imports to standard output, for protoc's --descriptor_set_in. They come from the Go module
// that enforces the rules, so no copy of the .proto is needed.
package main

import (
	"fmt"
	"os"

	validate "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

func main() {
	set := &descriptorpb.FileDescriptorSet{}
	appendFile(set, validate.File_buf_validate_validate_proto, map[string]bool{})
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
	if err == nil {
		_, err = os.Stdout.Write(data)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "validateproto: write descriptors: %v\n", err)
		os.Exit(1)
	}
}

// appendFile adds file after everything it imports, each once.
func appendFile(set *descriptorpb.FileDescriptorSet, file protoreflect.FileDescriptor, seen map[string]bool) {
	if seen[file.Path()] {
		return
	}
	seen[file.Path()] = true
	imports := file.Imports()
	for i := range imports.Len() {
		appendFile(set, imports.Get(i), seen)
	}
	set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
}
