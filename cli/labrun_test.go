package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weft/lab/scenario"
)

func init() { documents["weft lab run"] = scenarioResult{} }

func TestAScenarioThatMakesNoSenseIsNotRun(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.scn")
	if err := os.WriteFile(bad, []byte("server hub on=internet\nruoter home on=internet nat=none\nhost ann on=hme\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ line, words string }{
		{"campsu", "did you mean campus?"},
		{"./none.scn", "no such file"},
		{dir + "/", "is a directory"},
		{"campus hotel", "one word too many"},
		{"campus --backend qemu", "vnet or netns"},
		{"campus --seed x", "--seed"},
		{"campus --show --json", "leave one of the two out"},
		{bad, `bad.scn:2: "ruoter" is no statement: did you mean router?`},
	} {
		t.Run(c.line, func(t *testing.T) {
			fails(t, inProcess(append([]string{"lab", "run"}, strings.Fields(c.line)...)...), ExitUsage, c.words)
		})
	}
	// Of several mistakes each has its line.
	if err := os.WriteFile(bad, []byte("ruoter home\nhost ann\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := inProcess("lab", "run", bad)
	if r.code != ExitUsage || !strings.Contains(r.err, "bad.scn:1: ") || !strings.Contains(r.err, "bad.scn:2: where is ann?") {
		t.Errorf("%+v", r)
	}
	// What is said to weft is held against its commands, with its line.
	for line, words := range map[string]string{
		"weft ann set advertise-rotes=10.0.0.0/24":   `bad.scn:3: weft ann set advertise-rotes=10.0.0.0/24: "advertise-rotes=10.0.0.0/24" is no setting`,
		"weft ann set snat=perhaps":                  "bad.scn:3: weft ann set snat=perhaps: ",
		"at 5s weft hub admin route aprove ann exit": "bad.scn:3: weft hub admin route aprove ann exit: there is no \"aprove\"",
		"weft hub admin route approve":               "bad.scn:3: weft hub admin route approve: ",
		"weft ann portal local hub --klient eth1":    "bad.scn:3: weft ann portal local hub --klient eth1: ",
		"weft ann sett snat=off":                     "bad.scn:3: weft ann sett snat=off: ",
	} {
		if err := os.WriteFile(bad, []byte("server hub on=internet\nhost ann on=internet\n"+line+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		fails(t, inProcess("lab", "run", bad), ExitUsage, words)
	}
	// What this backend cannot do is no mistake of the scenario's.
	fails(t, inProcess("lab", "run", "wireguard"), ExitFailed, "--backend netns")
	fails(t, inProcess("lab", "run", "site-to-site"), ExitFailed, "site-to-site: line 9: the vnet backend cannot have a lan: only real machines do, with --backend netns")
}

func TestAScenarioIsRunToldAndWrittenDown(t *testing.T) {
	out := filepath.Join(t.TempDir(), "new", "out")
	r := inProcess("lab", "run", "carrier", "--seed", "3", "--out", out)
	if r.code != ExitOK || !strings.HasPrefix(r.out, "carrier: as expected (vnet, seed 3") || !strings.Contains(r.out, "yes  ann bob direct within 10s for 30s") {
		t.Fatalf("%+v", r)
	}
	if !strings.Contains(r.err, "ann reaches bob by direct") {
		t.Errorf("no progress was told: %s", r.err)
	}
	for name, words := range map[string]string{
		"carrier.scn": "router carrier", "logs/ann.log": "bob: from relay-udp", "result.json": `"schema_version": 2`,
		"timeline.txt": "*** ann and bob: direct",
	} {
		b, err := os.ReadFile(filepath.Join(out, name))
		if err != nil || !strings.Contains(string(b), words) {
			t.Errorf("%s: %v: there is no %q in it", name, err, words)
		}
	}
	var kept scenarioResult
	b, _ := os.ReadFile(filepath.Join(out, "result.json"))
	if err := json.Unmarshal(b, &kept); err != nil || len(kept.Trace) == 0 || kept.Seed != 3 {
		t.Errorf("result.json: %v, %d packets", err, len(kept.Trace))
	}

	r = inProcess("lab", "run", "lan", "--json")
	if r.code != ExitOK {
		t.Fatalf("%+v", r)
	}
	conforms(t, "weft lab run", []byte(r.out))
}

func TestAScenarioThatComesOutOtherwiseFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "otherwise.scn")
	text := inProcess("lab", "run", "lan", "--show")
	if text.code != ExitOK {
		t.Fatalf("%+v", text)
	}
	if err := os.WriteFile(file, []byte(text.out+"expect ann bob relay for 10s\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := inProcess("lab", "run", file)
	if r.code != ExitFailed || !strings.HasPrefix(r.out, "otherwise: NOT as expected") || !strings.Contains(r.out, "NO   ann bob relay for 10s") {
		t.Errorf("%+v", r)
	}
}

func TestTheScenariosThatComeWithWeftAreListed(t *testing.T) {
	r := inProcess("lab", "run")
	for _, name := range scenario.Shipped() {
		if !strings.Contains(r.out, "\n"+name+"\n") && !strings.HasPrefix(r.out, name+"\n") {
			t.Errorf("%s is not in the list", name)
		}
	}
	r = inProcess("lab", "run", "--json")
	var list struct {
		Scenarios []struct{ Name, About string }
	}
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list.Scenarios) != len(scenario.Shipped()) || list.Scenarios[0].About == "" {
		t.Errorf("%v: %s", err, r.out)
	}
}
