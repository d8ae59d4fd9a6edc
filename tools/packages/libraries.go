package main

import (
	"debug/elf"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// glibcMinor of 2.34, which Debian 12, Ubuntu 22.04 and RHEL 9 have: programs need no later one.
const glibcMinor = 34

// checkLibraries refuses programs that older systems cannot run.
func checkLibraries(tree []file) error {
	for _, program := range programs(tree) {
		binary, err := elf.Open(program.source)
		if err != nil {
			return err
		}
		defer binary.Close()
		symbols, err := binary.ImportedSymbols()
		if err != nil { // A program in Go is linked to none.
			continue
		}
		for _, symbol := range symbols {
			version, is := strings.CutPrefix(symbol.Version, "GLIBC_2.")
			minor, _ := strconv.Atoi(strings.SplitN(version, ".", 2)[0])
			if is && minor > glibcMinor {
				return fmt.Errorf("%s needs %s of %s: build on a system with an older glibc (2.%d runs everywhere)",
					program.target, symbol.Name, symbol.Version, glibcMinor)
			}
		}
	}
	return nil
}

var libraryLine = regexp.MustCompile(`(?m)^\s+(?:\S+ => )?(/\S+) \(0x`)

// linkedTo gives the libraries of a program, and what loads them, as this system has them.
func linkedTo(program string) ([]string, error) {
	binary, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer binary.Close()
	if binary.SectionByType(elf.SHT_DYNAMIC) == nil {
		return nil, nil
	}
	said, err := exec.Command("ldd", program).Output()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", program, err)
	}
	var found []string
	for _, line := range libraryLine.FindAllStringSubmatch(string(said), -1) {
		found = append(found, line[1])
	}
	return found, nil
}
