package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"weft"
)

func TestMetricsAreInPrometheusTextFormat(t *testing.T) {
	var got bytes.Buffer
	err := writeMetrics(&got, weft.Metrics{Families: []weft.MetricFamily{
		{Name: "weft_running", Type: "gauge", Help: `A back\slash and` + "\na line.", Samples: []weft.MetricSample{{Value: 1}}},
		{Name: "weft_path_loss_ratio", Type: "gauge", Help: "Lost.", Samples: []weft.MetricSample{
			{Labels: map[string]string{"peer": "bob", "link": `o"dd\` + "\n"}, Value: 0.0025}, {Labels: map[string]string{"peer": "cid"}, Value: 12345678901},
		}},
		{Name: "weft_none_total", Type: "counter", Help: "None."},
	}})
	want := `# HELP weft_running A back\\slash and\na line.
# TYPE weft_running gauge
weft_running 1
# HELP weft_path_loss_ratio Lost.
# TYPE weft_path_loss_ratio gauge
weft_path_loss_ratio{link="o\"dd\\\n",peer="bob"} 0.0025
weft_path_loss_ratio{peer="cid"} 1.2345678901e+10
# HELP weft_none_total None.
# TYPE weft_none_total counter
`
	if err != nil || got.String() != want {
		t.Errorf("%s\nnot\n%s%v", got.String(), want, err)
	}
	if err := writeMetrics(failing{}, weft.Metrics{Families: []weft.MetricFamily{{Name: "x"}}}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("where nothing can be written it says %v", err)
	}
}

// A line of the format: a name, labels, a number.
var sample = regexp.MustCompile(`^[a-z_]+(\{([a-z]+="([^"\\]|\\["\\n])*",?)+\})? [-+0-9.e]+$`)

func TestMetricsAreServedAndOutliveTheDaemon(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start("")
	r := n.run("metrics")
	if r.code != ExitOK || r.err != "" || !strings.Contains(r.out, "\nweft_running 0\n") {
		t.Errorf("%+v", r)
	}
	for line := range strings.Lines(r.out) {
		if line = strings.TrimSuffix(line, "\n"); !strings.HasPrefix(line, "# ") && !sample.MatchString(line) {
			t.Errorf("a line is %q", line)
		}
	}
	server := startWeft(t, "--socket", n.socket, "metrics", "--listen", "127.0.0.1:0")
	server.says("/metrics\n")
	url := strings.Fields(server.err.String())[2]
	get := func() (int, string, string) {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Header.Get("Content-Type"), string(b)
	}
	if code, kind, text := get(); code != http.StatusOK || kind != exposition || !strings.Contains(text, "\nweft_running 0\n") {
		t.Errorf("served: %d, %s, %s", code, kind, text)
	}
	n.cmd.Process.Signal(syscall.SIGTERM)
	<-n.done
	if code, _, text := get(); code != http.StatusServiceUnavailable || !strings.Contains(text, "weft node") {
		t.Errorf("without a daemon: %d, %s", code, text)
	}
	n.start("")
	if code, _, _ := get(); code != http.StatusOK {
		t.Errorf("when the daemon is back: %d", code)
	}
	taken := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/metrics")
	fails(t, inProcess("metrics", "--listen", taken), ExitFailed, "--listen")
	server.cmd.Process.Signal(os.Interrupt)
	if r := server.end(); r.code != ExitOK || r.out != "" || r.err != fmt.Sprintf("metrics at %s\n", url) {
		t.Errorf("when interrupted: %+v", r)
	}
}
