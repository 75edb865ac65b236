package weft

// Metrics is the document of weft metrics: counters and gauges, as Prometheus has them.
type Metrics struct {
	Schema   int            `json:"schema_version"`
	Families []MetricFamily `json:"metrics"`
}

// A MetricFamily is one metric, with a sample for each set of labels.
type MetricFamily struct {
	Name    string         `json:"name"`
	Type    string         `json:"type"` // counter or gauge
	Help    string         `json:"help"` // what it tells, in a sentence
	Samples []MetricSample `json:"samples"`
}

// A MetricSample is one value.
type MetricSample struct {
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}
