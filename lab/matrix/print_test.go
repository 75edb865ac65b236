package matrix

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft/golden"
	"weft/lab/scenario"
)

// modelled runs a plan on a fake backend that comes to what the oracle says, but for the cells named.
func modelled(t *testing.T, c Config, relay ...string) *Result {
	t.Helper()
	p := planned(t, c)
	ways := map[string]Way{}
	for _, cell := range p.Cells {
		ways[cell.Scenario.Name] = cell.Possible
	}
	for _, name := range relay {
		ways[name] = Relayed
	}
	b := &fake{run: func(_ context.Context, s scenario.Scenario, o scenario.Options) (scenario.Result, error) {
		if w := ways[s.Name]; w != Relayed {
			return direct(w, time.Duration(o.Seed)*map[Way]time.Duration{Plain: 60, Sprayed: 1500, Predicted: 900}[w]*time.Millisecond), nil
		}
		return relayed(12000), nil
	}}
	r, err := p.Run(t.Context(), b, Options{Seeds: 2, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	r.Version, r.Started, r.Seconds, r.Command = "test", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), 1.5, "weft lab nat"
	return r
}

var escape = regexp.MustCompile("\x1b\\[[0-9;]*m")

func TestTheTerminalShowsTheMatrix(t *testing.T) {
	for _, c := range []struct {
		file string
		r    *Result
	}{
		{"rfc4787.txt", modelled(t, Config{}, "eim-apdf-with-adm-adf")},
		{"rfc3489-double-different.txt", modelled(t, Config{Matrix: "rfc3489", Layout: DoubleDifferent}, "full-cone-restricted-cone-with-full-cone-symmetric")},
		{"rfc3489-shared.txt", modelled(t, Config{Matrix: "rfc3489", Layout: Shared, Pool: 4, Loss: 0.05, Late: true})},
	} {
		expect := c.r.Oracle()
		c.r.Compare(expect, "best.csv")
		var plain, coloured bytes.Buffer
		if err := c.r.Print(&plain, false); err != nil {
			t.Fatal(err)
		}
		if err := c.r.Print(&coloured, true); err != nil {
			t.Fatal(err)
		}
		golden.Text(t, c.file, plain.String())
		if !strings.Contains(coloured.String(), "\x1b[") || strings.Contains(plain.String(), "\x1b") {
			t.Errorf("%s: colour is not where it was asked for alone", c.file)
		}
		if diff := cmp.Diff(plain.String(), escape.ReplaceAllString(coloured.String(), "")); diff != "" {
			t.Errorf("%s: without its colours the coloured one is another: %s", c.file, diff)
		}
	}
}

// The names and kinds of what scripts read.
func TestTheDocumentHasTheShapeThatScriptsKnow(t *testing.T) {
	r := modelled(t, Config{Matrix: "rfc3489", Row: "symmetric", Col: "full-cone"})
	r.Compare(Table{Rows: []string{"symmetric"}, Cols: []string{"full-cone"}, Cells: [][]Verdict{{Relay}}}, "f.csv")
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	golden.Text(t, "cell.json", b.String())
	var back Result
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*r, back); diff != "" {
		t.Errorf("it reads back as another: %s", diff)
	}
}

func TestOnlyTheWholeIsAHundredPercent(t *testing.T) {
	for share, want := range map[float64]string{0: "0%", 0.001: "<1%", 0.5: "50%", 0.97: "97%", 0.995: ">99%", 0.9999: ">99%", 1: "100%"} {
		if got := Percent(share); got != want {
			t.Errorf("%v is %s", share, got)
		}
	}
}

func TestQuantilesAreMeasuredValues(t *testing.T) {
	v := []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for q, want := range map[float64]float64{0: 1, 0.05: 1, 0.5: 5, 0.51: 6, 0.95: 10, 1: 10} {
		if got := Quantile(v, q); got != want {
			t.Errorf("%v: %v", q, got)
		}
	}
	if Quantile(nil, 0.5) != 0 || (distribution(nil) != Distribution{}) {
		t.Error("of nothing there is a quantile")
	}
}
