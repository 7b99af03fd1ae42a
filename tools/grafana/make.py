#!/usr/bin/env python3
"""Writes tools/grafana/roseinfer.json, a Grafana dashboard (schema 36, Grafana 9 and later) of GET /metrics."""
import json
import pathlib


def quantiles(name):
    return [(f"histogram_quantile({q}, sum by (le) (rate({name}_bucket[$__rate_interval])))", f"p{q * 100:g}")
            for q in (0.5, 0.9, 0.99)]


def rate(name, legend, by=""):
    group = f" by ({by})" if by else ""
    return (f"sum{group} (rate({name}[$__rate_interval]))", legend)


def ratio(of, to, legend):
    return (f"sum(rate({of}[$__rate_interval])) / sum(rate({to}[$__rate_interval]))", legend)


GUESSES, GUESSED, ACCEPTED = (f"vllm:spec_decode_num_{k}_total" for k in ("drafts", "draft_tokens", "accepted_tokens"))

PANELS = [
    ("Requests", "short", [("vllm:num_requests_running", "running"), ("vllm:num_requests_waiting", "waiting")]),
    ("Tokens a second", "short", [rate("vllm:prompt_tokens_total", "prompt"),
                                  rate("vllm:generation_tokens_total", "generated")]),
    ("Preemptions, evictions", "short", [rate("vllm:num_preemptions_total", "preemptions"),
                                         rate("roseinfer:prefix_evictions_total", "pages evicted")]),
    ("Prefix cache: tokens found", "percentunit",
     [ratio("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", "of those looked up")]),
    ("KV pages in use", "percentunit", [("vllm:kv_cache_usage_perc", "used")]),
    ("Time to first token", "s", quantiles("vllm:time_to_first_token_seconds")),
    ("Inter-token latency", "s", quantiles("vllm:inter_token_latency_seconds")),
    ("End to end", "s", quantiles("vllm:e2e_request_latency_seconds")),
    ("Queue time", "s", quantiles("vllm:request_queue_time_seconds")),
    ("Prefill time", "s", quantiles("vllm:request_prefill_time_seconds")),
    ("Time per output token", "s", quantiles("vllm:request_time_per_output_token_seconds")),
    ("Step: host", "s", quantiles("roseinfer:step_host_seconds")),
    ("Step: host work exposed", "s", quantiles("roseinfer:step_exposed_seconds")),
    ("Step: compute", "s", quantiles("roseinfer:step_compute_seconds")),
    ("Rows a step", "short", quantiles("vllm:iteration_tokens_total")),
    ("Speculation: acceptance rate", "percentunit",
     [ratio(ACCEPTED, GUESSED, "of guessed tokens"),
      ("sum by (source) (rate(roseinfer:spec_tokens_total{result=\"accepted\"}[$__rate_interval])) / "
       "sum by (source) (rate(roseinfer:spec_tokens_total[$__rate_interval]))", "{{source}}")]),
    ("Speculation: accepted tokens a guess", "short", [ratio(ACCEPTED, GUESSES, "accepted"), ratio(GUESSED, GUESSES, "guessed")]),
    ("Speculation: accepted, by place in the guess", "percentunit",
     [("sum by (position) (rate(vllm:spec_decode_num_accepted_tokens_per_pos_total[$__rate_interval])) / "
       f"scalar(sum(rate({GUESSES}[$__rate_interval])))", "{{position}}")]),
    ("Ended, by reason", "short", [rate("vllm:request_success_total", "{{finished_reason}}", "finished_reason")]),
    ("Refused, by reason", "short", [rate("vllm:admission_rejections_total", "{{reason}}", "reason")]),
    ("HTTP replies", "short", [rate("http_requests_total", "{{handler}} {{status}}", "handler, status")]),
    ("Resident memory", "bytes", [("process_resident_memory_bytes", "RSS")]),
    ("CPU", "short", [rate("process_cpu_seconds_total", "cores")]),
    ("File descriptors", "short", [("process_open_fds", "open")]),
]


def panel(i, title, unit, targets):
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {"id": i + 1, "type": "timeseries", "title": title, "datasource": source,
            "gridPos": {"h": 8, "w": 8, "x": i % 3 * 8, "y": i // 3 * 8},
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [{"refId": chr(65 + k), "expr": expr, "legendFormat": legend, "datasource": source}
                        for k, (expr, legend) in enumerate(targets)]}


board = {"uid": "roseinfer", "title": "roseinfer", "schemaVersion": 36, "refresh": "10s", "tags": ["llm"],
         "time": {"from": "now-30m", "to": "now"},
         "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
         "panels": [panel(i, *p) for i, p in enumerate(PANELS)]}
path = pathlib.Path(__file__).with_name("roseinfer.json")
path.write_text(json.dumps(board, indent=1) + "\n")
