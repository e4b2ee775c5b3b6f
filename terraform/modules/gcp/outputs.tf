output "instance_id" {
  description = "The machine."
  value       = google_compute_instance.this.id
}

output "private_ip" {
  description = "Its address in the network."
  value       = google_compute_instance.this.network_interface[0].network_ip
}

output "service_account_email" {
  description = "The machine's service account."
  value       = google_service_account.this.email
}

output "lake_url" {
  description = "The lake, as the program and readers take it."
  value       = "gs://${var.lake.bucket}/${var.lake.prefix}"
}
