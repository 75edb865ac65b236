package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"weft/lab/matrix"
)

func init() { documents["weft lab nat"] = matrix.Result{} }

func TestAMatrixThatMakesNoSenseIsNotRun(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bad := file("bad.csv", "nat,full-cone\n# so far so good\nfull-cone,dirct\n")
	other := file("other.csv", "nat,EIM-EIF\nEIM-EIF,direct\n")
	for _, c := range []struct{ line, words string }{
		{"x", "one word too many"},
		{"--matrix rfc1", "rfc4787 or rfc3489"},
		{"--double=triple", "same or different"},
		{"--double different", "one word too many"},
		{"--double --hairpin", "give one of them"},
		{"--hairpin --shared", "give one of them"},
		{"--pool 0", "1 to 16"},
		{"--pool 17", "1 to 16"},
		{"--ports odd", "random, sequential or preserving"},
		{"--loss 100", "less than 100"},
		{"--loss -1", "less than 100"},
		{"--loss NaN", "less than 100"},
		{"--loss much", "in percent"},
		{"--cell EIM-EIF", "ROW,COL"},
		{"--cell EIM-EIF,EIM", "the rows are EIM-EIF, EIM-ADF"},
		{"--jobs -1", "--jobs"},
		{"--jobs 257", "--jobs"},
		{"--seeds -1", "--seeds"},
		{"--seeds 100001", "--seeds"},
		{"--seed -1", "--seed"},
		{"--backend qemu", "vnet or netns"},
		{"--expect " + filepath.Join(dir, "none.csv"), "--expect"},
		{"--matrix rfc3489 --expect " + bad, `bad.csv, line 3: expected direct, relay, none or ? for full-cone with full-cone, found "dirct"`},
		{"--matrix rfc3489 --expect " + other, `it has no row "full-cone"`},
		{"--out " + filepath.Join(other, "x") + " --matrix rfc3489", "--out"},
	} {
		t.Run(c.line, func(t *testing.T) {
			code := ExitUsage
			if strings.HasPrefix(c.line, "--out") {
				code = ExitFailed
			}
			fails(t, inProcess(append([]string{"lab", "nat"}, strings.Fields(c.line)...)...), code, c.words)
		})
	}
}

func TestAMatrixIsHeldAgainstAFileAndWrittenDown(t *testing.T) {
	dir := t.TempDir()
	out, expect := filepath.Join(dir, "new", "out"), filepath.Join(dir, "expect.csv")
	table := matrix.NewTable([]string{"full-cone", "restricted-cone", "port-restricted-cone", "symmetric"}, []string{"full-cone", "restricted-cone", "port-restricted-cone", "symmetric"})
	table.Cells[0][3] = matrix.Direct
	write := func() {
		if err := os.WriteFile(expect, table.AppendCSV(nil), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write()
	args := []string{"lab", "nat", "--matrix", "rfc3489", "--cell", "full-cone,symmetric", "--seeds", "2", "--seed", "7", "--expect", expect}

	r := inProcess(append(args, "--out", out, "--json")...)
	if r.code != ExitOK {
		t.Fatalf("%+v", r)
	}
	conforms(t, "weft lab nat", []byte(r.out))
	var doc matrix.Result
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
		t.Fatal(err)
	}
	if want := "weft lab nat --cell full-cone,symmetric --expect expect.csv --matrix rfc3489 --seed 7 --seeds 2"; doc.Command != want {
		t.Errorf("the command is %q", doc.Command)
	}
	if c := doc.Cells[0]; len(doc.Cells) != 1 || c.Verdict != matrix.Direct || len(c.Runs) != 2 || c.Runs[0].Seed != 7 || c.Way != matrix.Plain {
		t.Errorf("%+v", doc.Cells)
	}
	for name, words := range map[string]string{"matrix.csv": "full-cone,?,?,?,direct\n", "cells.json": `"schema_version": 2`, "index.html": "What was sent, with seed"} {
		b, err := os.ReadFile(filepath.Join(out, name))
		if err != nil || !strings.Contains(string(b), words) {
			t.Errorf("%s has no %q (%v)", name, words, err)
		}
	}

	table.Cells[0][3] = matrix.Relay
	write()
	const words = "full-cone with symmetric: expected relay, got direct"
	if r := inProcess(args...); r.code != ExitFailed || !strings.Contains(r.out, words) || strings.Contains(r.out, "\x1b") {
		t.Errorf("%+v", r)
	}
	if r := inProcess(append(args, "--json")...); r.code != ExitFailed || !strings.Contains(r.err, words) {
		t.Errorf("%+v", r)
	}
}

func TestAMatrixRunsUnderTheConditionsThatWereAskedFor(t *testing.T) {
	const cell = "lab nat --json --cell EIM-EIF,EIM-EIF"
	for line, want := range map[string]matrix.Conditions{
		"":                   {Layout: "single", Pool: 1, Ports: "random"},
		"--loss 5 --late":    {Layout: "single", Pool: 1, Ports: "random", Loss: 5, Late: true},
		"--loss 2.5%":        {Layout: "single", Pool: 1, Ports: "random", Loss: 2.5},
		"--double":           {Layout: "double", Pool: 1, Ports: "random"},
		"--hairpin --pool 4": {Layout: "hairpin", Pool: 4, Ports: "random"},
		"--ports sequential": {Layout: "single", Pool: 1, Ports: "sequential"},
		"--ports preserving": {Layout: "single", Pool: 1, Ports: "preserving"},
	} {
		r := inProcess(strings.Fields(cell + " " + line)...)
		var doc matrix.Result
		if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != ExitOK {
			t.Errorf("%s: %v, %+v", line, err, r)
			continue
		}
		want.Matrix, want.OneWay, want.Patient = "rfc4787", doc.Conditions.OneWay, doc.Conditions.Patient
		if doc.Conditions != want || doc.Seeds != vnetSeeds || len(doc.Cells[0].Runs) != vnetSeeds {
			t.Errorf("%s: %+v, %d seeds, %d runs", line, doc.Conditions, doc.Seeds, len(doc.Cells[0].Runs))
		}
	}
}

func TestAMatrixThatIsInterruptedSaysWhatItKnows(t *testing.T) {
	out := t.TempDir()
	p := start(t, weftCommand(t, "lab", "nat", "--seeds", "100000", "--jobs", "1", "--out", out, "--json"))
	p.says(" of 8100000 runs")
	p.cmd.Process.Signal(syscall.SIGINT)
	r := p.end()
	if r.code != ExitFailed || !strings.Contains(r.err, "interrupted") {
		t.Errorf("exit code %d: %q", r.code, r.err)
	}
	var doc matrix.Result
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || !doc.Partial || doc.Summary.Runs == 0 {
		t.Errorf("%v, partial %v, %d runs", err, doc.Partial, doc.Summary.Runs)
	}
	for _, name := range []string{"matrix.csv", "cells.json", "index.html"} {
		if b, err := os.ReadFile(filepath.Join(out, name)); err != nil || len(b) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
