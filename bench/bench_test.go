package bench

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/key"
)

func TestTheMedianIsTheMiddleAndOfTwoTheMeanOfBoth(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0}, {[]float64{7}, 7}, {[]float64{9, 1}, 5}, {[]float64{5, 1, 100}, 5}, {[]float64{4, 1, 3, 2}, 2.5},
	} {
		r := &Report{}
		for i, v := range c.values {
			r.Add("a", "m", "u", i, v)
			r.Add("b", "m", "u", i, -v)
			r.Add("a", "other", "u", i, -v)
		}
		if got := r.Median("a", "m"); got != c.want {
			t.Errorf("median of %v is %v", c.values, got)
		}
	}
}

func TestAGoalWithoutFiguresIsNotReached(t *testing.T) {
	r := &Report{}
	r.Add("fast", "rate", "Mbit/s", 1, 200)
	r.Add("slow", "rate", "Mbit/s", 1, 100)
	r.Add("fast", "time", "s", 1, 0.5)
	r.Judge([]Goal{
		{Name: "ratio reached", Measure: "rate", Subject: "fast", Over: "slow", Least: 2},
		{Name: "ratio missed", Measure: "rate", Subject: "slow", Over: "fast", Least: 0.51},
		{Name: "most reached", Measure: "time", Subject: "fast", Most: 0.5},
		{Name: "most missed", Measure: "time", Subject: "fast", Most: 0.4},
		{Name: "not measured", Measure: "time", Subject: "slow", Most: 1},
		{Name: "nothing beside it", Measure: "time", Subject: "fast", Over: "slow", Most: 1},
	})
	want := []bool{true, false, true, false, false, false}
	for i, g := range r.Goals {
		if g.Reached != want[i] {
			t.Errorf("%s: reached is %v with %v", g.Name, g.Reached, g.Value)
		}
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, g := range r.Goals {
		verdict := map[bool]string{true: "reached", false: "missed"}[g.Reached]
		if !regexp.MustCompile(`(?m)^` + g.Name + ` .* ` + verdict + `$`).MatchString(out.String()) {
			t.Errorf("the summary does not have %q, %s:\n%s", g.Name, verdict, out.String())
		}
	}
}

func TestWhatCouldNotBeMeasuredIsSaidAndNotReached(t *testing.T) {
	r := &Report{}
	r.Skip("rate", "there is no wire")
	r.Note("noon")
	r.Note("noon")
	r.Add("fast", "rate", "Mbit/s", 1, 200)
	r.Judge([]Goal{{Name: "speed", Measure: "rate", Subject: "fast", Least: 1}})
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	if r.Goals[0].Reached || !strings.Contains(out.String(), "left out: there is no wire") || strings.Count(out.String(), "noon") != 1 {
		t.Errorf("%+v is printed as\n%s", r.Goals[0], out.String())
	}
}

func TestAGoalMayStandBesideAnotherMeasure(t *testing.T) {
	r := &Report{}
	r.Add("a", "m", "u", 1, 6)
	r.Add("b", "m", "u", 1, 1)
	r.Add("b", "n", "u", 1, 2)
	r.Judge([]Goal{{Name: "g", Measure: "m", Subject: "a", Over: "b", OverMeasure: "n", Least: 3, Most: 3}})
	if g := r.Goals[0]; !g.Reached || g.Value != 3 {
		t.Errorf("%+v", g)
	}
}

func TestPartsHaveNamesOfTheirOwnAndGoals(t *testing.T) {
	names, about := Parts()
	for i, name := range names {
		if slices.Index(names, name) != i || about[i] == "" || len(parts[i].goals) == 0 {
			t.Errorf("part %d, %q, is not told apart or measures nothing", i, name)
		}
	}
	for _, name := range tunnelled {
		if !slices.Contains(names, name) {
			t.Errorf("%q is measured and cannot be asked for", name)
		}
	}
}

func TestRawFiguresAreKept(t *testing.T) {
	r := &Report{Schema: 1, Name: "overlay", Started: time.Unix(1e9, 0)}
	r.Add("a", "m", "u", 1, 3.25)
	path, err := r.Save(t.TempDir() + "/new")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Samples) != 1 || back.Samples[0] != r.Samples[0] {
		t.Errorf("kept is %+v", back.Samples)
	}
}

func TestThePlainTunnelsKeysComeInTwoLines(t *testing.T) {
	own, peer := key.NewPrivate[key.Node](), key.NewPrivate[key.Node]().Public()
	gotOwn, gotPeer, err := ReadPlainKeys(strings.NewReader(own.Reveal() + "\n" + peer.String() + "\n"))
	if err != nil || gotOwn.Public() != own.Public() || gotPeer != peer {
		t.Errorf("read %v, %v: %v", gotOwn.Public(), gotPeer, err)
	}
	for _, bad := range []string{"", own.Reveal(), peer.String() + "\n" + own.Reveal() + "\n", "x\ny\n"} {
		if _, _, err := ReadPlainKeys(strings.NewReader(bad)); err == nil {
			t.Errorf("took %d bytes for keys", len(bad))
		}
	}
}
