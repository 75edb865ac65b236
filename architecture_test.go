package weft_test

import (
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The rules of docs/architecture.md on who may lean on whom, as a failing check. Each rule looks at
// one source file and says in words what is wrong with it. Rooms are packages by their path in the
// module; the root is ".". Test files are bound by rules 4 (build tags) and 6 only: tests may put
// any rooms together.

// module is the module path; every import below it is a room of ours.
const module = "weft"

// source is one parsed Go file.
type source struct {
	room string // directory in the module, slashes, "." for the root
	name string // file name
	test bool
	ast  *ast.File
}

// wing returns the first element of a room's path: control for control/store.
func wing(room string) string {
	first, _, _ := strings.Cut(room, "/")
	return first
}

// rooms lists which rooms of ours the file imports.
func (s source) rooms() (rooms []string) {
	for _, p := range s.imports() {
		switch {
		case p == module:
			rooms = append(rooms, ".")
		case strings.HasPrefix(p, module+"/"):
			rooms = append(rooms, strings.TrimPrefix(p, module+"/"))
		}
	}
	return rooms
}

// foreign lists what the file imports that is neither ours nor of the standard library, whose
// paths have no dot in their first element.
func (s source) foreign() (paths []string) {
	for _, p := range s.imports() {
		if first, _, _ := strings.Cut(p, "/"); strings.Contains(first, ".") {
			paths = append(paths, p)
		}
	}
	return paths
}

func (s source) imports() (paths []string) {
	for _, spec := range s.ast.Imports {
		paths = append(paths, strings.Trim(spec.Path.Value, "`\""))
	}
	return paths
}

// uses lists which names of an imported package the file mentions, under whatever name it has here.
func (s source) uses(importPath string) (names []string) {
	local := ""
	for _, spec := range s.ast.Imports {
		if strings.Trim(spec.Path.Value, "`\"") == importPath {
			local = path.Base(importPath)
			if spec.Name != nil {
				local = spec.Name.Name
			}
		}
	}
	if local == "" {
		return nil
	}
	if local == "." {
		return []string{"(imported into the file's own names)"}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == local {
				names = append(names, sel.Sel.Name)
			}
		}
		return true
	})
	return names
}

// foundations says what the lowest rooms may lean on, beside the standard library.
var foundations = map[string]struct{ rooms, foreign []string }{
	".":    {rooms: []string{"key"}},
	"key":  {},
	"wire": {rooms: []string{".", "key"}},
	// Noise over byte streams of an upgraded HTTP connection, for node, control and relay alike.
	"stream": {rooms: []string{".", "key", "wire"}, foreign: []string{"github.com/coder/websocket", "github.com/flynn/noise"}},
}

// pureLibraries are the libraries of pure rooms, which are as pure as they are.
var pureLibraries = map[string][]string{"policy": {"github.com/tailscale/hujson"}}

// pure are the rooms without sockets, files, goroutines, locks, log or clock.
var pure = []string{"path", "bond", "policy", "wireguard"}

var (
	// impureImports end in / where all below is meant as well.
	impureImports = []string{"net", "net/", "os", "os/", "io/fs", "io/ioutil", "syscall", "log", "log/", "sync", "sync/", "runtime", "runtime/"}
	pureInNet     = []string{"net/netip"}
	clocks        = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	shells        = []string{"sh", "bash", "dash", "zsh", "ksh", "cmd", "cmd.exe", "powershell", "pwsh"}
	tagged        = []string{"host", "engine", "engine/segment", "lab/netns"}
	forbidden     = []string{"pkg", "util", "common", "types", "helpers", "internal"}
	// platforms are the words that make a file name a build constraint (go help buildconstraint).
	platforms = strings.Fields(`aix android darwin dragonfly freebsd illumos ios js linux netbsd openbsd plan9 solaris
		wasip1 windows 386 amd64 arm arm64 loong64 mips mips64 mips64le mipsle ppc64 ppc64le riscv64 s390x wasm`)
)

// rules of the house. Each returns its complaints about one file.
var rules = []struct {
	name  string
	check func(source) []string
}{
	{"1: root, key and wire lean on the standard library and on those below them", foundationsRule},
	{"2: path, bond, policy and wireguard are pure", purityRule},
	{"3: control and node never meet but in wire, and relay knows neither", meetingRule},
	{"4: build tags and other programs stay in their rooms", platformRule},
	{"5: only cli assembles roles; only cli and tests import lab and bench", assemblyRule},
	{"6: no room is named after nothing", namingRule},
}

func foundationsRule(s source) (wrong []string) {
	allowed, ok := foundations[s.room]
	if !ok || s.test {
		return nil
	}
	for _, r := range s.rooms() {
		if !slices.Contains(allowed.rooms, r) {
			wrong = append(wrong, "imports the room "+r)
		}
	}
	for _, p := range s.foreign() {
		if !slices.Contains(allowed.foreign, p) {
			wrong = append(wrong, "imports "+p)
		}
	}
	return wrong
}

func purityRule(s source) (wrong []string) {
	if !slices.Contains(pure, wing(s.room)) || s.test {
		return nil
	}
	for _, p := range s.imports() {
		banned := slices.ContainsFunc(impureImports, func(b string) bool {
			return p == b || strings.HasSuffix(b, "/") && strings.HasPrefix(p, b)
		})
		if banned && !slices.Contains(pureInNet, p) {
			wrong = append(wrong, "imports "+p)
		}
	}
	for _, r := range s.rooms() {
		if _, low := foundations[r]; (!low || r == "stream") && !slices.Contains(pure, wing(r)) {
			wrong = append(wrong, "imports the room "+r+", which is not pure")
		}
	}
	for _, p := range s.foreign() {
		if !strings.HasPrefix(p, "golang.org/x/crypto/") && !slices.Contains(pureLibraries[s.room], p) {
			wrong = append(wrong, "imports "+p)
		}
	}
	for _, name := range s.uses("time") {
		if slices.Contains(clocks, name) || strings.HasPrefix(name, "(") {
			wrong = append(wrong, "asks a clock: time."+name)
		}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		if _, ok := n.(*ast.GoStmt); ok {
			wrong = append(wrong, "starts a goroutine")
		}
		return true
	})
	return wrong
}

func meetingRule(s source) (wrong []string) {
	strangers := map[string][]string{
		"control":    {"node", "rendezvous"},
		"node":       {"control"},
		"relay":      {"control", "node", "rendezvous"},
		"rendezvous": {"control", "node", "relay"},
	}
	if s.test {
		return nil
	}
	for _, r := range s.rooms() {
		if slices.Contains(strangers[wing(s.room)], wing(r)) {
			wrong = append(wrong, "imports the room "+r)
		}
	}
	return wrong
}

func platformRule(s source) (wrong []string) {
	if !slices.Contains(tagged, s.room) {
		for _, group := range s.ast.Comments {
			for _, c := range group.List {
				if constraint.IsGoBuild(c.Text) || constraint.IsPlusBuild(c.Text) {
					wrong = append(wrong, "has a build tag: "+c.Text)
				}
			}
		}
		words := strings.Split(strings.TrimSuffix(strings.TrimSuffix(s.name, ".go"), "_test"), "_")
		if last := words[len(words)-1]; len(words) > 1 && slices.Contains(platforms, last) {
			wrong = append(wrong, "is built on some platforms only, by its name")
		}
	}
	laboratory := slices.Contains([]string{"lab", "bench"}, wing(s.room))
	if s.test || laboratory {
		return wrong
	}
	runs := slices.Contains(s.imports(), "os/exec")
	runs = runs || slices.Contains(s.uses("os"), "StartProcess")
	for _, p := range []string{"syscall", "golang.org/x/sys/unix"} {
		for _, name := range s.uses(p) {
			runs = runs || slices.Contains([]string{"Exec", "ForkExec", "StartProcess"}, name)
		}
	}
	if runs && wing(s.room) != "host" {
		wrong = append(wrong, "runs another program")
	}
	if wing(s.room) == "host" {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && slices.Contains(shells, path.Base(strings.Trim(lit.Value, "`\""))) {
				wrong = append(wrong, "names a shell: "+lit.Value)
			}
			return true
		})
	}
	return wrong
}

func assemblyRule(s source) (wrong []string) {
	if s.test {
		return nil
	}
	here := wing(s.room)
	for _, r := range s.rooms() {
		to := wing(r)
		if to == here {
			continue // a wing is one house
		}
		free := here == "lab" || here == "bench"
		switch to {
		case "lab", "bench", "control", "node":
			if here != "cli" && !free {
				wrong = append(wrong, "imports the room "+r+", which only cli may")
			}
		case "cli":
			if here != "cmd" && !free {
				wrong = append(wrong, "imports cli, which only cmd may")
			}
		default:
			if here == "cmd" {
				wrong = append(wrong, "imports the room "+r+"; cmd imports cli alone")
			}
		}
	}
	return wrong
}

func namingRule(s source) (wrong []string) {
	for _, word := range append(strings.Split(s.room, "/"), strings.TrimSuffix(s.ast.Name.Name, "_test")) {
		if slices.Contains(forbidden, word) {
			return []string{"is in a room named " + word}
		}
	}
	return nil
}

// complaints runs all rules over one file.
func complaints(s source) (all []string) {
	for _, r := range rules {
		for _, wrong := range r.check(s) {
			all = append(all, fmt.Sprintf("%s: %s (rule %s)", path.Join(s.room, s.name), wrong, r.name))
		}
	}
	return all
}

func TestTheRoomsLeanOnlyOnWhomTheyMay(t *testing.T) {
	seen := map[string]bool{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, statErr := os.Stat(filepath.Join(name, "go.mod"))
			hidden := name != "." && (strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_"))
			if hidden || d.Name() == "testdata" || name != "." && statErr == nil { // what go build ./... passes over
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		s := source{filepath.ToSlash(filepath.Dir(name)), d.Name(), strings.HasSuffix(name, "_test.go"), file}
		seen[s.room] = true
		for _, wrong := range complaints(s) {
			t.Error(wrong)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, room := range []string{".", "key", "wire", "lab/netns"} {
		if !seen[room] {
			t.Errorf("the room %s was not looked at: the check runs in the wrong place", room)
		}
	}
}

func TestEveryRuleOfTheHouseCatchesWhatItForbids(t *testing.T) {
	for _, c := range []struct {
		file, code string
		rule       string // the number of the only rule that complains, "" for none
	}{
		{"weft.go", `package weft; import "weft/key"`, ""},
		{"weft.go", `package weft; import "weft/wire"`, "1"},
		{"key/key.go", `package key; import "crypto/ecdh"`, ""},
		{"key/key.go", `package key; import "weft"`, "1"},
		{"key/key.go", `package key; import "golang.org/x/crypto/blake2s"`, "1"},
		{"key/key_test.go", `package key; import "pgregory.net/rapid"`, ""},
		{"wire/frame.go", `package wire; import ("weft"; "weft/key")`, ""},
		{"wire/frame.go", `package wire; import "weft/path"`, "1"},
		{"stream/stream.go", `package stream; import ("net/http"; "github.com/coder/websocket"; "weft/wire")`, ""},
		{"stream/stream.go", `package stream; import "github.com/quic-go/quic-go"`, "1"},

		{"path/agent.go", `package path; import ("net/netip"; "time"); func f(now time.Time, a netip.Addr) time.Duration { return now.Sub(now) }`, ""},
		{"path/agent.go", `package path; import "net"`, "2"},
		{"path/agent.go", `package path; import "time"; func f() { time.Now() }`, "2"},
		{"path/agent.go", `package path; import clock "time"; func f() { clock.AfterFunc(0, nil) }`, "2"},
		{"path/agent.go", `package path; import . "time"; func f() { Now() }`, "2"},
		{"path/agent.go", `package path; func f() { go f() }`, "2"},
		{"path/agent.go", `package path; import "weft/host"`, "2"},
		{"bond/pace.go", `package bond; import "sync/atomic"`, "2"},
		{"policy/text.go", `package policy; import "os"`, "2"},
		{"policy/text.go", `package policy; import "log/slog"`, "2"},
		{"policy/text.go", `package policy; import "github.com/tailscale/hujson"`, ""},
		{"policy/filter/filter.go", `package filter; import "github.com/tailscale/hujson"`, "2"},
		{"policy/filter/filter.go", `package filter; import "weft/policy"`, ""},
		{"wireguard/seal.go", `package wireguard; import ("golang.org/x/crypto/chacha20poly1305"; "weft/key")`, ""},
		{"wireguard/seal_test.go", `package wireguard; import ("testing"; "sync"; "net")`, ""},

		{"control/control.go", `package control; import ("weft/wire"; "weft/control/store"; "weft/relay")`, ""},
		{"node/node.go", `package node; import ("weft/relay"; "weft/engine")`, ""},
		{"relay/relay.go", `package relay; import "weft/wire"`, ""},
		{"rendezvous/view.go", `package rendezvous; import ("weft/stream"; "weft/wire")`, ""},
		{"rendezvous/server.go", `package rendezvous; import "weft/relay"`, "3"},
		{"node/meeting.go", `package node; import "weft/rendezvous"`, ""},
		{"node/node_test.go", `package node_test; import "weft/control"`, ""},

		{"host/route_linux.go", `package host; import "os/exec"; func f() { exec.Command("ip", "route") }`, ""},
		{"host/route.go", `package host; import "os/exec"; func f() { exec.Command("/bin/sh", "-c", "ip route") }`, "4"},
		{"node/dns.go", `package node; import "os/exec"`, "4"},
		{"node/dns.go", `package node; import "os"; func f() { os.StartProcess("x", nil, nil) }`, "4"},
		{"node/dns.go", `package node; import "golang.org/x/sys/unix"; func f() { unix.Exec("x", nil, nil) }`, "4"},
		{"lab/demo/demo.go", `package demo; import "os/exec"`, ""},
		{"node/tun_linux.go", `package node`, "4"},
		{"node/tun_windows_test.go", `package node`, "4"},
		{"node/linux.go", `package node`, ""},
		{"node/tun.go", "//go:build linux\n\npackage node", "4"},
		{"engine/tun.go", "//go:build linux\n\npackage engine", ""},

		{"cli/server.go", `package cli; import ("weft/control"; "weft/node"; "weft/lab/demo"; "weft/bench")`, ""},
		{"cmd/weft/main.go", `package main; import "weft/cli"`, ""},
		{"cmd/weft/main.go", `package main; import "weft/host"`, "5"},
		{"engine/tun.go", `package engine; import "weft/lab/vnet"`, "5"},
		{"engine/tun.go", `package engine; import "weft/node"`, "5"},
		{"web/web.go", `package web; import "weft/control"`, "5"},
		{"host/host.go", `package host; import "weft/cli"`, "5"},
		{"lab/vnet/vnet.go", `package vnet; import ("weft/control"; "weft/node"; "weft/bench")`, ""},

		{"util/x.go", `package util`, "6"},
		{"node/internal/x.go", `package x`, "6"},
		{"node/strings.go", `package helpers`, "6"},
	} {
		expect(t, c.file, c.code, c.rule)
	}
	// These break two rules, and both say so.
	for file, code := range map[string]string{
		"control/control.go": `package control; import "weft/node"`,
		"node/node.go":       `package node; import "weft/control/store"`,
		"relay/relay.go":     `package relay; import "weft/control"`,
	} {
		if got := rulesBroken(t, file, code); !slices.Equal(got, []string{"3", "5"}) {
			t.Errorf("%s: %s: breaks rules %v, want 3 and 5", file, code, got)
		}
	}
}

func expect(t *testing.T, file, code, rule string) {
	t.Helper()
	var want []string
	if rule != "" {
		want = []string{rule}
	}
	if got := rulesBroken(t, file, code); !slices.Equal(got, want) {
		t.Errorf("%s: %s: breaks rules %v, want %v", file, code, got, want)
	}
}

// rulesBroken returns the numbers of the rules that complain of a file.
func rulesBroken(t *testing.T, file, code string) (numbers []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, code, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	s := source{path.Dir(file), path.Base(file), strings.HasSuffix(file, "_test.go"), parsed}
	for _, r := range rules {
		if len(r.check(s)) > 0 {
			numbers = append(numbers, r.name[:1])
		}
	}
	return numbers
}
