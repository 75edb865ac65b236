package guest

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

func TestTheAgentAnswersInWhateverOrderProgramsEnd(t *testing.T) {
	here, there := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- serve(there) }()
	ask, answers := json.NewEncoder(here), json.NewDecoder(here)
	for _, r := range []request{
		{ID: 1, Args: []string{"sleep", "1000"}},
		{ID: 2, Args: []string{"cat"}, Stdin: []byte("quick")},
	} {
		if err := ask.Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	var a answer
	if err := answers.Decode(&a); err != nil || a.ID != 2 || string(a.Stdout) != "quick" || a.Error != "" {
		t.Errorf("the first answer is %+v, %v", a, err)
	}
	if err := ask.Encode(request{ID: 1, Stop: true}); err != nil {
		t.Fatal(err)
	}
	a = answer{}
	if err := answers.Decode(&a); err != nil || a.ID != 1 || a.Error == "" {
		t.Errorf("the second answer is %+v, %v", a, err)
	}
	here.Close()
	if err := <-done; err != nil {
		t.Errorf("the agent ends with %v", err)
	}
}

func TestModulesComeBehindThoseThatTheyDependOn(t *testing.T) {
	dir := t.TempDir()
	k := &kernel{modules: map[string]string{}}
	for name, depends := range map[string]string{"a_b": "c,d-e", "c": "d_e", "d_e": "", "x": "y", "y": "x"} {
		k.modules[name] = filepath.Join(dir, name+".ko")
		content := "\x7fELF license=GPL\x00depends=" + depends + "\x00retpoline=Y\x00"
		if err := os.WriteFile(k.modules[name], []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := k.order([]string{"c", "a-b"})
	var names []string
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	if want := []string{"d_e.ko", "c.ko", "a_b.ko"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("the order is %v, %v; want %v", names, err, want)
	}
	for _, name := range []string{"x", "missing"} {
		if files, err := k.order([]string{name}); err == nil {
			t.Errorf("%s has the order %v", name, files)
		}
	}
}

func TestACommandComesThroughTheShellAsItIs(t *testing.T) {
	args := []string{"printf", "%s|", "a b", "it's", "$HOME `x` \\ \"", ""}
	out, err := exec.Command("sh", "-c", quoted(args)).Output()
	if want := "a b|it's|$HOME `x` \\ \"||"; err != nil || string(out) != want {
		t.Errorf("it becomes %q, %v; want %q", out, err, want)
	}
}
