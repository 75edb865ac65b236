package netns

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestTheLastWordsAreTheLastLinesAndOfACrashTheFirst(t *testing.T) {
	var numbers, stack []string
	for i := range 100 {
		numbers = append(numbers, fmt.Sprint("line ", i))
		stack = append(stack, fmt.Sprint("\tframe ", i))
	}
	said, frames := strings.Join(numbers, "\n"), strings.Join(stack, "\n")
	for name, c := range map[string]struct {
		log, first, last string
		lines            int
	}{
		"nothing was said":    {"", "", "", 1},
		"little was said":     {"one\ntwo\n", "one", "two", 2},
		"no crash":            {said, "line 97", "line 99", 3},
		"a crash":             {said + "\npanic: oh\n\ngoroutine 1 [running]:\n" + frames, "panic: oh", "\tframe 36", crashKept},
		"a short one":         {said + "\nfatal error: oh\n\tframe 0\n", "fatal error: oh", "\tframe 0", 2},
		"a race":              {said + "\n==================\nWARNING: DATA RACE\n" + frames, "WARNING: DATA RACE", "\tframe 38", crashKept},
		"the first of two":    {"panic: a\npanic: b\n" + frames, "panic: a", "\tframe 37", crashKept},
		"a request's":         {said + "\ntime=1 level=ERROR msg=oh panic=ah\n" + frames, "time=1 level=ERROR msg=oh panic=ah", "\tframe 38", crashKept},
		"a word in a message": {"time=1 msg=\"panic: no\"\nlevel=ERROR fatal error: no", "time=1 msg=\"panic: no\"", "level=ERROR fatal error: no", 2},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Split(LastWords(c.log, 3), "\n")
			if len(got) != c.lines || got[0] != c.first || got[len(got)-1] != c.last {
				t.Errorf("%d lines, from %q to %q; want %d, from %q to %q", len(got), got[0], got[len(got)-1], c.lines, c.first, c.last)
			}
		})
	}
}

func TestALabSaysWhichOfItsProgramsCrashedAndWhy(t *testing.T) {
	const asked, why = "WEFT_TEST_CRASH", "the goose is out"
	if os.Getenv(asked) != "" {
		for range 30 { // whose stacks are the log's last lines
			go func() { select {} }()
		}
		go panic(why)
		select {}
	}
	t.Parallel()
	if err := Available(); err != nil {
		t.Skip(err)
	}
	l := must(New(t.Context(), "wefttest"))(t)
	defer l.Close()
	h := must(l.AddHost("server"))(t)
	cmd := h.Command(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(cmd.Environ(), asked+"=1", "GOTRACEBACK=all")
	p := must(h.Start(cmd))(t)
	<-p.Done()
	for what, err := range map[string]error{"the program": p.Err(), "the lab": l.Close()} {
		if err == nil || !strings.Contains(err.Error(), "panic: "+why) || !strings.Contains(err.Error(), "words_test.go") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s says %v", what, err)
		}
	}
}
